#pragma once
// Private to train/: threads of LibTorch's CPU operations that sleep while they wait for work.

namespace trireme {

/// Whether OpenMP's threads sleep while they wait (OMP_WAIT_POLICY). libgomp's default is to spin for milliseconds
/// after every operation: on a machine that others use too, the spinning threads hold the cores that the working ones
/// need, and a step takes many times as long. libgomp reads the variable once, before main(): a program that links this
/// function therefore executes itself again with OMP_WAIT_POLICY=PASSIVE, before any library is initialised (20 ms),
/// unless OMP_WAIT_POLICY or GOMP_SPINCOUNT say otherwise or OMP_NUM_THREADS is 1.
bool waits_passively();

}  // namespace trireme
