// hd.h — HD marks functions that compile for host and device alike.
#pragma once
#ifdef __CUDACC__
#define HD __host__ __device__
#else
#define HD
#endif
