"""A step as one flat list of instructions per actor (design decision 2; JaxPP, section 4.2).

In: calls with their jaxprs, and for each actor its instructions over numbered slots (`instructions`); or their text
(`parse`). Out: a `Program` (`program`) and its text (`write`), which `check` holds against the rules that every runtime
relies on; `order` plays it without values.
"""

from jaxquard.ir.program.instructions import ActorProgram as ActorProgram
from jaxquard.ir.program.instructions import Call as Call
from jaxquard.ir.program.instructions import Constant as Constant
from jaxquard.ir.program.instructions import Free as Free
from jaxquard.ir.program.instructions import Input as Input
from jaxquard.ir.program.instructions import Instruction as Instruction
from jaxquard.ir.program.instructions import Output as Output
from jaxquard.ir.program.instructions import Recv as Recv
from jaxquard.ir.program.instructions import Run as Run
from jaxquard.ir.program.instructions import Send as Send
from jaxquard.ir.program.program import Program as Program
