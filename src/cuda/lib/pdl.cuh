// pdl.cuh — programmatic dependent launch. Every kernel waits once in every block before it reads what an
// earlier kernel wrote or writes anything.
#pragma once

namespace sparkinfer::cuda {

__device__ __forceinline__ void wait_for_predecessor() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_successor_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace sparkinfer::cuda
