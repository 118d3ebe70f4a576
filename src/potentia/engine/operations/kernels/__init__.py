"""The operations of static passes as Triton kernels: the same names and arguments as the plain forms in ``plain``.

Each moves its operands through memory once. The base of lanes is frozen, so nothing here computes a gradient of a base
weight: that is what sets these kernels apart from the ones that training libraries keep. They run on CUDA devices, and
on a processor under Triton's interpreter (``TRITON_INTERPRET=1``), where the tests compare them with the plain forms.
"""

from potentia.engine.operations.kernels.adapters import (
    add_adapter_outputs,
    backpropagate_adapters,
    sum_adapter_gradients,
)
from potentia.engine.operations.kernels.attention import attend, attend_back, attend_cached
from potentia.engine.operations.kernels.convolution import convolve, convolve_back
from potentia.engine.operations.kernels.elementwise import (
    add_norm,
    fused_drop,
    gate,
    gate_back_,
    loss,
    norm,
    norm_back,
    rotate_,
    update_,
)
from potentia.engine.operations.kernels.groups import (
    add_group_outputs_,
    group_gradients,
    group_inner_values,
)
from potentia.engine.operations.kernels.launch import compiling
