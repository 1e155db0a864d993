"""The end of a search, shared by its parts."""

import math
import time
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Deadline:
    """The time at which a search shall end.

    Attributes:
        end_s: by `time.monotonic`; infinite for no end.
        left_out: what was left out so far, one sentence each.
    """

    end_s: float = math.inf
    left_out: list[str] = field(default_factory=list)

    @staticmethod
    def after(budget_s: float | None) -> "Deadline":
        """Returns a deadline that is so many seconds away; None for no end."""
        return Deadline(end_s=math.inf if budget_s is None else time.monotonic() + budget_s)

    @property
    def rest_s(self) -> float:
        """The seconds that are left; 0 if it has passed."""
        return max(0.0, self.end_s - time.monotonic())

    @property
    def budget_s(self) -> float | None:
        """The same as a budget; None for no end."""
        return None if math.isinf(self.end_s) else self.rest_s

    def has_time(self) -> bool:
        """Returns true as long as it has not passed."""
        return self.rest_s > 0

    def part(self, share: float) -> "Deadline":
        """Returns an earlier deadline, after a share of the time that is left; it notes what is left out here."""
        if math.isinf(self.end_s):
            return self
        return Deadline(end_s=time.monotonic() + share * self.rest_s, left_out=self.left_out)
