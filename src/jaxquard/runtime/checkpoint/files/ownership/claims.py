"""The paths that this program owns: claim files beside them, refreshed until the program ends.

    runs/.last.owner-7     the seventh program to save to runs/last; a JSON that describes it (`Owner`)

The highest number is the owner. A link makes a claim file appear whole, and fails if another program took the number,
also on NFS. A new program takes the next number once the owner is dead, or has ended and removed its file. An owner
that was only silent (frozen, or without network) finds the higher number and is refused; what it was writing is renamed
away before anything else happens (`folders`), so that its last rename fails if it did not look.
"""

import atexit
import contextlib
import errno
import os
import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jaxquard.errors import CheckpointOwnedError, StaleOwnerError
from jaxquard.runtime.checkpoint.files.ownership.owner import (
    HEARTBEAT_S,
    Owner,
    is_alive,
    read_owner,
    this_process,
)

_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedPath:
    """The thing that is owned.

    Attributes:
        path: names it in errors.
        folder: has the claim files.
        prefix: begins their names.
        last_fence: reads the number of the program that wrote last.
    """

    path: Path
    folder: Path
    prefix: str
    last_fence: Callable[[], int]

    def file(self, fence: int) -> Path:
        return self.folder / f"{self.prefix}{fence}"

    def fences(self) -> list[int]:
        """Returns the numbers of all claims, the highest last."""
        pattern = re.compile(re.escape(self.prefix) + r"(\d{1,18})")
        return sorted(int(found[1]) for name in os.listdir(self.folder) if (found := pattern.fullmatch(name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerClaim:
    """A place that this program owns, or has owned."""

    place: OwnedPath
    owner: Owner

    @property
    def fence(self) -> int:
        return self.owner.fence

    def check(self) -> None:
        """Checks that this program is still the owner.

        Raises:
            StaleOwnerError: if another program has become the owner since.
        """
        fences = self.place.fences()
        if fences and fences[-1] != self.fence:
            raise self._stale(read_owner(self.place.file(fences[-1])), fences[-1])
        found = read_owner(self.place.file(self.fence)) if fences else None
        if found is not None and found.token != self.owner.token:
            raise self._stale(found, found.fence)
        if not fences:
            # Someone has deleted the folder, or another program has come and gone.
            last = self.place.last_fence()
            if last > self.fence:
                raise self._stale(None, last)
            if not _create(self.place, self.owner):
                self.check()

    def refresh(self) -> None:
        """Touches the file: the heartbeat."""
        with contextlib.suppress(OSError):
            os.utime(self.place.file(self.fence))

    def remove(self) -> None:
        """Gives the place up."""
        with contextlib.suppress(OSError):
            if read_owner(self.place.file(self.fence)) == self.owner:
                self.place.file(self.fence).unlink()

    def _stale(self, owner: Owner | None, fence: int) -> StaleOwnerError:
        return StaleOwnerError(
            f"{os.fspath(self.place.path)} belongs to {owner or 'another program'} now (owner {fence}, after this "
            f"program as owner {self.fence}): this program gave no heartbeat, or its files were removed. Nothing was "
            "replaced. End this program, or save to another path."
        )


class Claims:
    """The claims of this program; a thread refreshes them, and the end of the program gives them up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, OwnerClaim] = {}
        self._thread: threading.Thread | None = None

    def take(self, place: OwnedPath) -> OwnerClaim:
        """Makes this program the owner of a place, if it is not already.

        Raises:
            CheckpointOwnedError: if another program owns it and is alive.
            StaleOwnerError: if this program has been the owner, and another is now.
        """
        key = os.path.join(os.path.realpath(place.folder), place.prefix)
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                held.check()
                return held
            self._held[key] = claim = _acquire(place)
            if self._thread is None:
                atexit.register(self.give_up_all)
                self._thread = threading.Thread(target=self._refresh, name="jaxquard-owner-heartbeat", daemon=True)
                self._thread.start()
        return claim

    def give_up(self, claim: OwnerClaim) -> None:
        """Lets another program own the place, though this one goes on."""
        with self._lock:
            self._held = {key: held for key, held in self._held.items() if held is not claim}
        claim.remove()

    def give_up_all(self) -> None:
        for claim in list(self._held.values()):
            self.give_up(claim)

    def forget(self) -> None:
        """Starts anew in a forked process: the claims are those of its parent."""
        self._lock, self._held, self._thread = threading.Lock(), {}, None

    def _refresh(self) -> None:
        wait = threading.Event().wait
        while not wait(HEARTBEAT_S):
            for claim in list(self._held.values()):
                claim.refresh()


def _acquire(place: OwnedPath) -> OwnerClaim:
    token = uuid.uuid4().hex
    while True:
        fences = place.fences()
        if fences:
            _require_dead(place, fences[-1], token)
        owner = this_process(max([place.last_fence(), *fences]) + 1, token)
        if _create(place, owner):
            break
    for fence in fences:
        with contextlib.suppress(FileNotFoundError):
            place.file(fence).unlink()
    return OwnerClaim(place=place, owner=owner)


def _require_dead(place: OwnedPath, fence: int, token: str) -> None:
    file, probe = place.file(fence), place.folder / f"{place.prefix}probe-{token}"
    owner = read_owner(file)
    try:
        alive = is_alive(owner, file, probe)
    finally:
        with contextlib.suppress(FileNotFoundError):
            probe.unlink()
    if alive:
        raise CheckpointOwnedError(
            f"{os.fspath(place.path)} belongs to {owner or 'another program'}, which is alive. End that program, or "
            "save to another path."
        )


def _create(place: OwnedPath, owner: Owner) -> bool:
    """Makes a claim file; returns False if the number is taken."""
    target, draft = place.file(owner.fence), place.folder / f"{place.prefix}draft-{owner.token}"
    draft.write_bytes(owner.to_json())
    try:
        os.link(draft, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _create_without_link(target, owner)
    finally:
        draft.unlink()
    return True


def _create_without_link(target: Path, owner: Owner) -> bool:
    """Does the same on a file system without hard links; for an instant the file is empty."""
    try:
        with target.open("xb") as file:
            file.write(owner.to_json())
    except FileExistsError:
        return False
    return True


# Ownership is of the whole program, as it is for others to see.
CLAIMS = Claims()
os.register_at_fork(after_in_child=CLAIMS.forget)
