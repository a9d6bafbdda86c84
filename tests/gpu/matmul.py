"""Multiplies two matrices of 512 x 512 on the first GPU, by the driver's own interface (cuda.h), and
compares with the processor. With the argument `none` it makes sure that there is no GPU instead.
"""

import array
import ctypes
import glob
import sys
import time

N = 512
BLOCK = 16

# c[row, column] = sum over k of a[row, k] * b[k, column]: one thread an element.
PTX = b"""
.version 6.0
.target sm_50
.address_size 64

.visible .entry matmul(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %p<3>;
    .reg .f32 %f<4>;
    .reg .b32 %r<12>;
    .reg .b64 %d<12>;

    ld.param.u64 %d1, [a];
    ld.param.u64 %d2, [b];
    ld.param.u64 %d3, [c];
    ld.param.u32 %r1, [n];
    cvta.to.global.u64 %d1, %d1;
    cvta.to.global.u64 %d2, %d2;
    cvta.to.global.u64 %d3, %d3;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    mov.u32 %r2, %ctaid.y;
    mov.u32 %r3, %ntid.y;
    mov.u32 %r4, %tid.y;
    mad.lo.s32 %r6, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra END;
    setp.ge.u32 %p2, %r6, %r1;
    @%p2 bra END;
    mul.lo.s32 %r7, %r6, %r1;
    mul.wide.u32 %d4, %r7, 4;
    add.s64 %d5, %d1, %d4;
    mul.wide.u32 %d6, %r5, 4;
    add.s64 %d7, %d2, %d6;
    mul.wide.u32 %d8, %r1, 4;
    mov.f32 %f1, 0f00000000;
    mov.u32 %r8, 0;
LOOP:
    ld.global.f32 %f2, [%d5];
    ld.global.f32 %f3, [%d7];
    fma.rn.f32 %f1, %f2, %f3, %f1;
    add.s64 %d5, %d5, 4;
    add.s64 %d7, %d7, %d8;
    add.u32 %r8, %r8, 1;
    setp.lt.u32 %p1, %r8, %r1;
    @%p1 bra LOOP;
    add.s64 %d9, %d3, %d4;
    add.s64 %d9, %d9, %d6;
    st.global.f32 [%d9], %f1;
END:
    ret;
}
\0"""


def expect_none():
    nodes = glob.glob("/dev/nvidia*")
    if nodes:
        sys.exit(f"there are nodes: {nodes}")
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        print(f"no nodes, and {error}")
    else:
        sys.exit("libcuda.so.1 is there")


def check(status, what):
    if status:
        name = ctypes.c_char_p()
        cuda.cuGetErrorName(status, ctypes.byref(name))
        sys.exit(f"{what}: {status} {(name.value or b'').decode()}")


def to_device(values):
    pointer = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(len(values) * 4)), "cuMemAlloc")
    address, _ = values.buffer_info()
    copied = cuda.cuMemcpyHtoD_v2(pointer, ctypes.c_void_p(address), ctypes.c_size_t(len(values) * 4))
    check(copied, "cuMemcpyHtoD")
    return pointer


def multiply():
    check(cuda.cuInit(0), "cuInit")
    count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    check(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    name = ctypes.create_string_buffer(128)
    check(cuda.cuDeviceGetName(name, 128, device), "cuDeviceGetName")
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuModuleLoadData(ctypes.byref(module), PTX), "cuModuleLoadData")
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"matmul"), "cuModuleGetFunction")
    # Small whole numbers: their sums are exact in 24 bits.
    a = array.array("f", [(i * 7 + i // N) % 5 - 2 for i in range(N * N)])
    b = array.array("f", [(i * 3 + i // N) % 7 - 3 for i in range(N * N)])
    c = array.array("f", bytes(N * N * 4))
    pointers = [to_device(values) for values in (a, b, c)]
    size = ctypes.c_uint(N)
    arguments = (ctypes.c_void_p * 4)(*[ctypes.addressof(value) for value in (*pointers, size)])
    begun = time.perf_counter()
    grid = (N + BLOCK - 1) // BLOCK
    launched = cuda.cuLaunchKernel(function, grid, grid, 1, BLOCK, BLOCK, 1, 0, None, arguments, None)
    check(launched, "cuLaunchKernel")
    check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
    seconds = time.perf_counter() - begun
    copied = cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(c.buffer_info()[0]), pointers[2], ctypes.c_size_t(N * N * 4))
    check(copied, "cuMemcpyDtoH")
    for row, column in [(0, 0), (1, 2), (N // 2, N // 3), (N - 1, N - 1), (17, 400)]:
        right = sum(a[row * N + k] * b[k * N + column] for k in range(N))
        if c[row * N + column] != right:
            sys.exit(f"c[{row}, {column}] is {c[row * N + column]}, and should be {right}")
    print(f"{count.value} GPU seen; {N} x {N} on {name.value.decode()} in {seconds * 1000:.2f} ms, as the processor has it")


if sys.argv[1:] == ["none"]:
    expect_none()
else:
    cuda = ctypes.CDLL("libcuda.so.1")
    multiply()
