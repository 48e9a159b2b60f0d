// SPDX-License-Identifier: Apache-2.0
#include "ops/rules/sparse_input.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/rules/index_type.h"

namespace millrace {

StatusOr<SparseSize> CheckSparseInput(const RuleContext* c, const SparseArgs& args) {
  const auto name = [&](absl::string_view part) { return absl::StrCat(args.prefix, part); };
  SparseSize size;
  const PartialShape& indices = c->input(args.indices);
  if (indices.has_rank() && indices.rank() != 2) {
    return InvalidArgument(name("indices"), " must be a matrix, got shape ", indices);
  }
  if (indices.has_rank()) size = {indices.dim(0), indices.dim(1)};
  if (args.values >= 0) {
    const PartialShape& values = c->input(args.values);
    if (values.has_rank() && values.rank() != 1) {
      return InvalidArgument(name("values"), " must be a vector, got shape ", values);
    }
    const int64_t count = values.has_rank() ? values.dim(0) : -1;
    if (count >= 0 && size.count >= 0 && count != size.count) {
      return InvalidArgument(name("indices"), " must have one row for each of the ", count, " ",
                             name("values"), ", got shape ", indices);
    }
    size.count = std::max(size.count, count);
  }
  if (args.shape >= 0) {
    const PartialShape& shape = c->input(args.shape);
    if (shape.has_rank() && shape.rank() != 1) {
      return InvalidArgument(name(args.shape_name), " must be a vector, got shape ", shape);
    }
    const int64_t rank = shape.has_rank() ? shape.dim(0) : -1;
    if (rank >= 0 && size.rank >= 0 && rank != size.rank) {
      return InvalidArgument(name("indices"), " must have one column for each of the ", rank,
                             " dimensions of ", name(args.shape_name), ", got shape ", indices);
    }
    size.rank = std::max(size.rank, rank);
  }
  return size;
}

std::string SparseShape::ToString() const {
  return absl::StrCat("[", absl::StrJoin(dims, ","), "]");
}

StatusOr<SparseShape> SparseShape::Make(IntSpan dims, absl::string_view name) {
  if (dims.size() > static_cast<size_t>(Shape::kMaxRank)) {
    return InvalidArgument(name, " must have at most ", Shape::kMaxRank, " dimensions, got ",
                           dims.size());
  }
  SparseShape shape;
  bool is_empty = false;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] < 0) return InvalidArgument(name, "[", d, "] must be >= 0, got ", dims[d]);
    is_empty = is_empty || dims[d] == 0;
    shape.dims.push_back(dims[d]);
  }
  shape.strides.assign(dims.size(), 0);
  if (is_empty) {
    shape.num_elements = 0;
    return shape;
  }
  for (size_t d = dims.size(); d-- > 0;) {
    shape.strides[d] = shape.num_elements;
    if (__builtin_mul_overflow(shape.num_elements, dims[d], &shape.num_elements)) {
      return InvalidArgument(name, " must have fewer than 2^63 elements, got ", shape.ToString());
    }
  }
  return shape;
}

namespace {

Status BadIndex(const Tensor& indices, size_t i, absl::string_view name, absl::string_view what) {
  const size_t rank = static_cast<size_t>(indices.dim(1));
  const std::vector<int64_t> index = indices.ints().subspan(i * rank, rank).ToVector();
  return InvalidArgument(name, "[", i, "] = [", absl::StrJoin(index, ","), "] is ", what);
}

}  // namespace

StatusOr<std::vector<int64_t>> FlatPlaces(const Tensor& indices, const SparseShape& shape,
                                          PlaceOrder order, absl::string_view name) {
  const size_t count = static_cast<size_t>(indices.dim(0)), rank = shape.dims.size();
  std::vector<int64_t> places(count);
  size_t bad = count;
  VisitIndexType(indices.dtype(), [&]<typename Index>() {
    const Index* index = indices.raw<Index>().data();
    for (size_t i = 0; i < count && bad == count; ++i, index += rank) {
      int64_t place = 0;
      for (size_t d = 0; d < rank; ++d) {
        if (index[d] < 0 || index[d] >= shape.dims[d]) bad = i;
        // A bad index may be any number, and its product with a stride no number at all.
        place += bad == i ? 0 : int64_t{index[d]} * shape.strides[d];
      }
      places[i] = place;
    }
  });
  if (bad < count) {
    return BadIndex(indices, bad, name,
                    absl::StrCat("out of bounds: need 0 <= index < ", shape.ToString()));
  }
  if (order == PlaceOrder::kAny) return places;
  for (size_t i = 1; i < count; ++i) {
    if (places[i] > places[i - 1]) continue;
    if (places[i] < places[i - 1]) {
      return BadIndex(
          indices, i, name,
          absl::StrCat("out of order, behind [",
                       absl::StrJoin(indices.ints().subspan((i - 1) * rank, rank).ToVector(), ","),
                       "]; SparseReorder sorts them"));
    }
    if (order == PlaceOrder::kUnique) return BadIndex(indices, i, name, "repeated");
  }
  return places;
}

std::vector<int64_t> OrderOf(absl::Span<const int64_t> places) {
  std::vector<int64_t> order;
  if (std::is_sorted(places.begin(), places.end())) return order;
  order.resize(places.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return places[static_cast<size_t>(a)] < places[static_cast<size_t>(b)];
  });
  return order;
}

}  // namespace millrace
