// Scalar types and the names of address spaces.
#pragma once

#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable

#define MSL_DEVICE __global
#define MSL_CONSTANT __constant
#define MSL_THREADGROUP __local
#define MSL_THREAD __private
#define MSL_FUNC inline __attribute__((always_inline))

typedef __bf16 bfloat;
typedef signed char schar;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef decltype(sizeof(0)) size_t;
typedef decltype((char*)0 - (char*)0) ptrdiff_t;
typedef ulong uintptr_t;
