// How sites, lanes and columns lie in memory, and the buffers that hold them.
//
// A vector holds W numbers: one complex component of `site_lanes` sites, one from each of as many sub-lattices, times
// `rhs_lanes` columns. Sub-lattices cut z, y and x, never t: a time slice is then a contiguous range of vector sites, and its
// sums do not depend on how many slices there are. Where the extents allow fewer sub-lattices than lanes, right-hand sides
// fill the rest (a 3x5x7x3 lattice has one site per vector and W columns side by side).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels.h"

namespace lqcd_native {

constexpr int kMaxLanes = 16;

// A 64-byte aligned block of memory, on huge pages where it is large and the system gives them.
class Block {
 public:
  explicit Block(size_t bytes);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_;
  size_t bytes_;
};

// How numbers lie in memory; see storage_kernels.h.
enum class Storage { f64, f32, f16, b16, q16 };
// By the core's names: float64, float32, float16, bfloat16, fixed16.
Storage storage_of(const std::string& name);

class Layout : public std::enable_shared_from_this<Layout> {
 public:
  // extents t, z, y, x; parity -1 (full), 0 (even), 1 (odd).
  Layout(std::vector<int> extents, int parity, Storage storage, const KernelTable* kernels);

  const Ops& ops() const { return *ops_; }
  size_t real_bytes() const { return is_double ? 8 : 4; }                      // of the arithmetic
  bool packed() const { return storage > Storage::f32; }                       // stored otherwise than computed
  size_t site_bytes() const { return size_t(ops_->site_bytes) * lanes; }       // of one vector site of one group, as stored
  size_t number_bytes() const { return size_t(ops_->number_bytes); }
  int groups(int n) const { return (n + rhs_lanes - 1) / rhs_lanes; }
  size_t group_stride() const { return group_stride_; }
  std::string describe() const;

  // Can `other` be the source of a hop that lands here?
  bool hops_from(const Layout& other) const;
  bool same(const Layout& other) const;

  // The canonical coordinates of a site number of the host array (of this parity).
  void coordinates(int64_t site, int* c) const;

  std::unique_ptr<Block> take_block(size_t bytes);
  void give_block(std::unique_ptr<Block> block);

  const KernelTable* kernels;
  Storage storage;
  bool is_double;      // the arithmetic
  int extent[4], parity;
  int split[4], local[4];
  int lanes, site_lanes, rhs_lanes;
  int64_t sites;       // canonical sites of this parity
  int64_t vsites;      // vector sites
  int64_t per_slice;   // vector sites of one time slice
  std::vector<int32_t> site;      // [vsite][site lane] -> canonical site
  std::vector<int32_t> nbr;       // see HopArgs
  std::vector<uint8_t> cross;
  std::vector<int32_t> lane_map;  // [8][lanes]

 private:
  void choose_split();
  void fill_tables();
  const Ops* ops_;
  size_t group_stride_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> spare_;
};

// The memory of one handle: n columns in groups of rhs_lanes, padding lanes zero.
class Field {
 public:
  Field(std::shared_ptr<Layout> layout, int n);
  ~Field();
  Field(const Field&) = delete;
  Field& operator=(const Field&) = delete;

  int groups() const { return layout->groups(n); }
  void* group(int g) const { return static_cast<char*>(block_->data()) + g * layout->group_stride(); }

  const std::shared_ptr<Layout> layout;
  const int n;

 private:
  std::unique_ptr<Block> block_;
};

// Links of one bind, ready for hops that land on a layout.
struct PackedLinks {
  std::shared_ptr<Layout> layout;
  std::unique_ptr<Block> block;
  bool two_rows = false;
  double quantum = 1;                  // fixed point: what an entry is a multiple of
  // Two rows only: see HopArgs.
  double third[8] = {};
  std::vector<uint8_t> edge;
  std::unique_ptr<Block> edge_phases;
  double deviation = 0;                // largest distance of a third row from what the first two give
};

// A site-diagonal term ready for a layout.
struct PackedDiagonal {
  std::shared_ptr<Layout> layout;
  DiagonalArgs args;
  std::unique_ptr<Block> block;
};

}  // namespace lqcd_native
