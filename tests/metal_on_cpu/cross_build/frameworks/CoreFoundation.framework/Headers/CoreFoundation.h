// The types that metal-cpp and MLX's headers take from CoreFoundation.
#pragma once

#include <MacTypes.h>
#include <TargetConditionals.h>
#include <stdbool.h>
#include <stdint.h>

typedef double CFTimeInterval;
typedef signed long CFIndex;
typedef const void* CFTypeRef;
typedef const struct __CFString* CFStringRef;
