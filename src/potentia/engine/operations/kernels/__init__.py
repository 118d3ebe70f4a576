"""The operations of static passes as Triton kernels: the same names and arguments as the plain forms in ``plain``.

Each moves its operands through memory once. The base of lanes is frozen, so nothing here computes a gradient of a base
weight: that is what sets these kernels apart from the ones that training libraries keep. They run on CUDA devices, and
on a processor under Triton's interpreter (``TRITON_INTERPRET=1``), where the tests compare them with the plain forms.
"""

from potentia.engine.operations.kernels.cached import attend_cached
from potentia.engine.operations.kernels.gate import gate, gate_back_
from potentia.engine.operations.kernels.loss import loss
from potentia.engine.operations.kernels.norm import add_norm, norm, norm_back
from potentia.engine.operations.kernels.rotation import rotate_
from potentia.engine.operations.kernels.rows import attend, attend_back
from potentia.engine.operations.kernels.thin import thin, thin_back
from potentia.engine.operations.kernels.update import update_
