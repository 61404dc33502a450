// The fused cells that PyTorch's LSTM and GRU use on any device but the CPU.
#pragma once

namespace npu_sim {

void register_recurrent_cells();

}  // namespace npu_sim
