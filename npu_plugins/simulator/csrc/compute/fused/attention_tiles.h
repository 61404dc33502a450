// Attention is worked on in tiles whose scores fit in a core's cache, so that no buffer as large as all scores is made:
// that is what a card's kernel does, and on a host it saves the time that such buffers take to be touched.
#pragma once

#include "compute/fused/attention_blocks.h"

namespace npu_sim {

// Key heads of one batch entry, with all query heads that attend to them: what shares gradients of key and value.
struct Unit {
    int64_t batch, key_head, key_heads;
};

// Query heads of a unit and rows of their scores.
struct Tile {
    int64_t batch, head, heads, row, rows;
};

struct Tiling {
    explicit Tiling(const Block& block);

    std::vector<Unit> units() const;
    // A unit's tiles: one with all its heads and rows, or one query head at a time.
    std::vector<Tile> tiles(const Unit& unit) const;

    int64_t group;  // query heads that share a key head

 private:
    int64_t batches_, key_heads_, queries_;
    int64_t unit_heads_;  // key heads of a unit
    bool whole_;          // a tile is a unit
    int64_t rows_;
};

// `tensor`, broadcastable to (B, N, Q, K), where it meets the tile's scores: (heads, rows, K), or 1 for each.
at::Tensor part(const at::Tensor& tensor, const Tile& tile);

// Rows of a tensor (B, N, Q, ·): (heads, rows, ·).
at::Tensor rows_of(const at::Tensor& tensor, const Tile& tile);

// Heads of a tensor (B, NK, K, ·): (key heads, K, ·).
at::Tensor heads_of(const at::Tensor& tensor, const Unit& unit);

}  // namespace npu_sim
