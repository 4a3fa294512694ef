// Elements of 2 bytes, which NVRTC has no type for without NVIDIA's headers.
#pragma once

struct half {
  unsigned short bits;
};

struct bfloat {
  unsigned short bits;
};
