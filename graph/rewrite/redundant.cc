// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/redundant.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "graph/partial_value.h"
#include "graph/pure.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

// A small constant vector of ints.
std::optional<Ints> ConstVector(const OutputRef& tensor) {
  if (tensor.node == nullptr || !IsConst(*tensor.node) ||
      ConstElements(*tensor.node) > Shape::kMaxRank) {
    return std::nullopt;
  }
  const StatusOr<Tensor> value = ConstValue(*tensor.node);
  if (!value.ok() || !value->shape().is_vector() || !IsIndexType(value->dtype())) {
    return std::nullopt;
  }
  return value->ints().ToVector();
}

bool IsPermutation(const Ints& perm) {
  std::vector<bool> seen(perm.size(), false);
  for (const int64_t p : perm) {
    if (p < 0 || p >= static_cast<int64_t>(perm.size()) || seen[static_cast<size_t>(p)]) {
      return false;
    }
    seen[static_cast<size_t>(p)] = true;
  }
  return true;
}

// Whether every value of `from` survives the way to `to` and back.
bool HoldsEvery(DType from, DType to) {
  const auto bits = [](DType type) -> int {  // negative when signed; 0 for others
    switch (type) {
      case DT_INT8:
        return -8;
      case DT_INT16:
        return -16;
      case DT_INT32:
        return -32;
      case DT_INT64:
        return -64;
      case DT_UINT8:
        return 8;
      case DT_UINT16:
        return 16;
      default:
        return 0;
    }
  };
  const int a = bits(from), b = bits(to);
  if (a == 0 || b == 0) return false;
  if (a > 0) return b > 0 ? b >= a : -b > a;
  return b < 0 && b <= a;
}

// A node whose output equals `source`, and what had to come before.
struct Equal {
  OutputRef source;
  std::vector<Node*> controls;
  const Node* inner = nullptr;  // a node in between that cannot fail
};

class Remover {
 public:
  explicit Remover(RewriteContext* context) : context_(context) {}

  StatusOr<bool> Visit(Node* node) {
    if (node->num_outputs() != 1 || node->num_inputs() < 1 || node->input(0).node == nullptr) {
      return false;
    }
    Equal equal;
    equal.controls.assign(node->control_inputs().begin(), node->control_inputs().end());
    bool found = false;
    if (node->op() == "Cast") {
      found = SameCast(*node, &equal);
    } else if (node->op() == "Transpose") {
      found = SameTranspose(*node, &equal);
    } else if (node->op() == "Reshape") {
      MR_RETURN_IF_ERROR(SkipInnerReshape(node));
      found = SameReshape(*node, &equal);
    }
    if (!found || !CheckIsPure(*node).ok()) return false;
    RemoveDoubles(&equal.controls);
    MR_ASSIGN_OR_RETURN(const bool done, context_->Bypass(node, equal.source, equal.controls));
    if (done && equal.inner != nullptr) context_->MarkUnneeded(*equal.inner);
    return done;
  }

  int skipped() const { return skipped_; }

 private:
  static void AddControls(const Node& node, Equal* equal) {
    equal->controls.insert(equal->controls.end(), node.control_inputs().begin(),
                           node.control_inputs().end());
  }

  bool SameCast(const Node& node, Equal* equal) {
    const Node& inner = *node.input(0).node;
    equal->source = node.input(0);
    if (node.input_type(0) == node.output_type(0)) return true;
    if (inner.op() != "Cast" || inner.op_entry() != node.op_entry() || inner.num_inputs() != 1 ||
        inner.input(0).node == nullptr || inner.input_type(0) != node.output_type(0) ||
        !HoldsEvery(inner.input_type(0), inner.output_type(0))) {
      return false;
    }
    equal->source = inner.input(0);
    equal->inner = &inner;
    AddControls(inner, equal);
    return true;
  }

  // Of a Transpose that is known not to fail.
  std::optional<Ints> Permutation(const Node& node) {
    std::optional<Ints> perm = ConstVector(node.input(1));
    if (!perm || !IsPermutation(*perm)) return std::nullopt;
    const PartialShape shape = context_->ShapeOf(node.input(0));
    if (!shape.has_rank() || shape.rank() != static_cast<int>(perm->size())) return std::nullopt;
    return perm;
  }

  bool SameTranspose(const Node& node, Equal* equal) {
    std::optional<Ints> perm = Permutation(node);
    if (!perm || !context_->AppendOrderAfter(node.input(1), &equal->controls)) return false;
    equal->source = node.input(0);
    const Node& inner = *node.input(0).node;
    if (inner.op() == "Transpose" && inner.op_entry() == node.op_entry() &&
        inner.input(0).node != nullptr) {
      const std::optional<Ints> first = Permutation(inner);
      if (first && context_->AppendOrderAfter(inner.input(1), &equal->controls)) {
        for (int64_t& p : *perm) p = (*first)[static_cast<size_t>(p)];
        equal->source = inner.input(0);
        equal->inner = &inner;
        AddControls(inner, equal);
      }
    }
    for (size_t i = 0; i < perm->size(); ++i) {
      if ((*perm)[i] != static_cast<int64_t>(i)) return false;
    }
    return true;
  }

  // The shape that `shape`, -1 at most once, gives to a tensor of shape `from` is `from`.
  static bool IsSameShape(const PartialShape& from, const Ints& shape) {
    if (!from.has_rank() || from.rank() != static_cast<int>(shape.size())) return false;
    int num_open = 0;
    for (int d = 0; d < from.rank(); ++d) {
      const int64_t wanted = shape[static_cast<size_t>(d)];
      // Dimensions that are not known agree only by what -1 makes of the others. Next to a
      // dimension of 0 a -1 is refused.
      if (wanted == -1) {
        if (++num_open > 1) return false;
      } else if (wanted != from.dim(d)) {
        return false;
      }
    }
    for (const int64_t wanted : shape) {
      if (num_open > 0 && wanted == 0) return false;
    }
    return true;
  }

  bool SameReshape(const Node& node, Equal* equal) {
    const std::optional<Ints> shape = ConstVector(node.input(1));
    if (!shape || !context_->AppendOrderAfter(node.input(1), &equal->controls)) return false;
    equal->source = node.input(0);
    return IsSameShape(context_->ShapeOf(node.input(0)), *shape);
  }

  // Reshape(Reshape(x, a), b) reads x, when the inner one is known not to fail.
  Status SkipInnerReshape(Node* node) {
    const OutputRef inner_ref = node->input(0);
    const Node& inner = *inner_ref.node;
    if (inner.op() != "Reshape" || inner.op_entry() != node->op_entry() ||
        !inner.control_inputs().empty() || inner.input(0).node == nullptr ||
        inner.assigned_device() != node->assigned_device() ||
        inner.input(0).node->assigned_device() != node->assigned_device()) {
      return absl::OkStatus();
    }
    const OutputRef source = inner.input(0);
    if (IsRef(source.node->output_type(source.index))) return absl::OkStatus();
    const std::optional<Ints> shape = ConstVector(inner.input(1));
    const PartialShape from = context_->ShapeOf(source);
    const PartialShape to = context_->ShapeOf(inner_ref);
    std::vector<Node*> befores;
    if (!shape || !from.IsFullyDefined() || !to.IsFullyDefined() ||
        from.num_elements() != to.num_elements() ||
        !context_->AppendOrderAfter(inner.input(1), &befores) || !befores.empty()) {
      return absl::OkStatus();
    }
    context_->MarkUnneeded(inner);
    ++skipped_;
    return context_->graph()->UpdateInput(node, 0, source.node, source.index);
  }

  RewriteContext* const context_;
  int skipped_ = 0;
};

}  // namespace

StatusOr<int> RemoveRedundantMoves(RewriteContext* context) {
  Remover remover(context);
  int changed = 0;
  for (const int id : context->Order()) {
    Node* node = context->node(id);
    if (node == nullptr) continue;
    MR_ASSIGN_OR_RETURN(const bool removed, remover.Visit(node));
    changed += removed;
  }
  return changed + remover.skipped();
}

}  // namespace millrace
