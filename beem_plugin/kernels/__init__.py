"""
Triton kernels for transformer blocks, each beside a torch reference of the same signature.

They run on CUDA devices, and on the CPU in Triton's interpreter (`TRITON_INTERPRET=1`, which the tests set).
"""
