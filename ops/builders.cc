// SPDX-License-Identifier: Apache-2.0
// The builders that do more than one call, and the one that every literal ends in: in a header,
// each program that calls them would compile them.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/shape.h"
#include "core/tensor.h"
#include "graph/node_builder.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/reshape.h"
#include "ops/math/reduction.h"

namespace millrace {

Output Const(ScopeAt at, const Tensor& value) {
  return BuildOp(at, "Const", {}, "dtype", value.dtype(), "value", value);
}

Output ReductionAxes(ScopeAt at, Output input, const std::vector<int64_t>& axes) {
  std::vector<int32_t> values;
  for (const int64_t axis : axes) values.push_back(static_cast<int32_t>(axis));
  if (axes.empty()) {
    const PartialShape shape = at.scope.shape(input);
    if (!shape.has_rank()) {
      const Output rank = Rank(ScopeAt(at.scope.WithName("Rank"), at.where), input);
      const Output zero = Const(ScopeAt(at.scope.WithName("Const"), at.where), int32_t{0});
      const Output one = Const(ScopeAt(at.scope.WithName("Const"), at.where), int32_t{1});
      return Range(ScopeAt(at.scope.WithName("range"), at.where), zero, rank, one);
    }
    for (int32_t i = 0; i < shape.rank(); ++i) values.push_back(i);
  }
  return ConstVector<int32_t>(ScopeAt(at.scope.WithName("Const"), at.where), values);
}

Output AxesReductionBuilder::operator()(ScopeAt at, const Output& input,
                                        const std::vector<int64_t>& axes,
                                        const ReductionAttrs& attrs) const {
  return ReductionBuilder{op}(at, input, ReductionAxes(at, input, axes), attrs);
}

Operation Group(ScopeAt at, absl::Span<const Operation> operations) {
  const auto no_op = [&](const Scope& scope, const std::string& device,
                         absl::Span<const Operation> after) -> Operation {
    // A device is taken as it stands, so that no field of the scope's is mixed into it.
    const Scope here = device.empty() ? scope : scope.ColocatedWith({});
    NodeBuilder builder({here, at.where}, "NoOp");
    if (!device.empty()) builder.Device(device);
    for (const Operation& operation : after) builder.ControlInput(operation);
    return builder.Finish();
  };
  // Sorted, so that the same operations give the same graph.
  std::map<std::string, std::vector<Operation>> by_device;
  for (const Operation& operation : operations) {
    if (operation.valid()) by_device[operation.node()->requested_device()].push_back(operation);
  }
  constexpr char kName[] = "group_deps";
  if (by_device.size() <= 1) {
    const std::string device = by_device.empty() ? "" : by_device.begin()->first;
    return no_op(at.scope.WithName(at.scope.RequestedName(kName)), device, operations);
  }
  const Scope inside = at.scope.CompositeScope(kName);
  std::vector<Operation> parts;
  for (const auto& [device, own] : by_device) parts.push_back(no_op(inside, device, own));
  return no_op(inside.WithName(inside.prefix()), "", parts);
}

}  // namespace millrace
