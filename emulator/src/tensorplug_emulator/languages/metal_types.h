// What both headers of the Metal Shading Language begin with: its version and its integers.
#pragma once

#define TENSORPLUG_EMULATED 1
#define __METAL__ 1
#define __METAL_VERSION__ 310
#define kernel
#define thread

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
// A plain char has a sign there.
#define char signed char
