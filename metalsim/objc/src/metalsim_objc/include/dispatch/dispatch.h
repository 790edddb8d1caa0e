// The part of Grand Central Dispatch that host code of a PyTorch extension calls: PyTorch's queue, and waiting on it.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __OBJC__
#include <objc/runtime.h>
@protocol OS_dispatch_queue
@end
typedef id<OS_dispatch_queue> dispatch_queue_t;
#else
typedef struct dispatch_queue_s* dispatch_queue_t;
#endif

typedef void (^dispatch_block_t)(void);

extern "C" void dispatch_sync(dispatch_queue_t queue, dispatch_block_t block);
