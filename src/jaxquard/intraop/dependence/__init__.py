"""How the dims of an equation's outputs depend on those of its inputs (CFP, section 3.2)."""

from .dependences import Dependences as Dependences
from .dependences import Memo as Memo
from .dependences import dependences as dependences
from .link import Link as Link
from .link import can_cut as can_cut
from .link import compose as compose
