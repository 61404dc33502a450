#include "compute/fused/attention_tiles.h"

#include <algorithm>

namespace npu_sim {
namespace {

constexpr int64_t kTileScores = int64_t{1} << 16;  // 256 KiB in float32, a part of a core's second cache
constexpr int64_t kLeastRows = 16;                 // fewer make thin matrix products

}  // namespace

Tiling::Tiling(const Block& block)
    : group(block.query.size(1) / block.key.size(1)),
      batches_(block.query.size(0)),
      key_heads_(block.key.size(1)),
      queries_(block.queries()) {
    const int64_t keys = std::max<int64_t>(block.keys(), 1), queries = std::max<int64_t>(queries_, 1);
    const int64_t fitting = kTileScores / (group * queries * keys);
    whole_ = fitting >= 1;
    unit_heads_ = std::clamp<int64_t>(fitting, 1, key_heads_);
    rows_ = whole_ ? queries_ : std::min(queries_, std::max(kTileScores / keys, kLeastRows));
}

std::vector<Unit> Tiling::units() const {
    std::vector<Unit> units;
    for (int64_t batch = 0; batch < batches_; ++batch)
        for (int64_t head = 0; head < key_heads_; head += unit_heads_)
            units.push_back({batch, head, std::min(unit_heads_, key_heads_ - head)});
    return units;
}

std::vector<Tile> Tiling::tiles(const Unit& unit) const {
    const int64_t first = unit.key_head * group, count = unit.key_heads * group;
    if (whole_) return {{unit.batch, first, count, 0, queries_}};
    std::vector<Tile> tiles;
    for (int64_t head = first; head < first + count; ++head)
        for (int64_t row = 0; row < queries_; row += rows_)
            tiles.push_back({unit.batch, head, 1, row, std::min(rows_, queries_ - row)});
    return tiles;
}

at::Tensor part(const at::Tensor& tensor, const Tile& tile) {
    at::Tensor view = tensor;
    while (view.dim() < 4) view = view.unsqueeze(0);
    view = view.select(0, view.size(0) == 1 ? 0 : tile.batch);
    if (view.size(0) != 1) view = view.narrow(0, tile.head, tile.heads);
    return view.size(1) == 1 ? view : view.narrow(1, tile.row, tile.rows);
}

at::Tensor rows_of(const at::Tensor& tensor, const Tile& tile) {
    return tensor.select(0, tile.batch).narrow(0, tile.head, tile.heads).narrow(1, tile.row, tile.rows);
}

at::Tensor heads_of(const at::Tensor& tensor, const Unit& unit) {
    return tensor.select(0, unit.batch).narrow(0, unit.key_head, unit.key_heads);
}

}  // namespace npu_sim
