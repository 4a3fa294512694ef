// The part of NVRTC's C interface that is used here. Its own header comes with 60 MB of compiler,
// which is there at run time: MLX links to it.
#pragma once

#include <cstddef>

extern "C" {
typedef struct _nvrtcProgram* nvrtcProgram;
int nvrtcCreateProgram(
    nvrtcProgram* program,
    const char* source,
    const char* name,
    int num_headers,
    const char* const* headers,
    const char* const* include_names);
int nvrtcDestroyProgram(nvrtcProgram* program);
int nvrtcCompileProgram(nvrtcProgram program, int num_options, const char* const* options);
int nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size);
int nvrtcGetProgramLog(nvrtcProgram program, char* log);
int nvrtcGetCUBINSize(nvrtcProgram program, size_t* size);
int nvrtcGetCUBIN(nvrtcProgram program, char* cubin);
const char* nvrtcGetErrorString(int result);
}
