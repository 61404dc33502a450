// The simulated machine: how many NPUs, how much memory, which the calling thread uses.
#pragma once

#include <vector>

#include "runtime/sim.h"

namespace npu_sim {

constexpr int kMaxDevices = 64;

struct Machine {
    int count;           // NPUs of the machine, visible or not
    uint64_t hbm_bytes;  // capacity of each
};

// Read from the environment once; npu_plugins.simulator.settings has validated it before.
const Machine& machine();

void set_current_device(int device);

// True if the calling thread has a device. A thread that set none gets the default one that aclInit's file names
// ("defaultDevice"), as on a card; asking which device is current does not count as use.
bool use_some_device();

}  // namespace npu_sim
