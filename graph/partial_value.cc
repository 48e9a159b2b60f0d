// SPDX-License-Identifier: Apache-2.0
#include "graph/partial_value.h"

#include <limits>
#include <list>
#include <string>
#include <utility>

#include "core/hash_table.h"
#include "core/snapshot_registry.h"
#include "graph/op_registry.h"
#include "graph/pending_registrations.h"

namespace millrace {
namespace {

using Rules = HashMap<std::string, PartialValueRule>;
using NamedRule = Rules::value_type;

void AddToRules(const std::list<NamedRule>& rules, Rules* next) {
  for (const NamedRule& rule : rules) next->insert(rule);
}

using RuleRegistry = SnapshotRegistry<NamedRule, Rules>;
RuleRegistry& Registry() {
  static RuleRegistry* const registry = new RuleRegistry(&AddToRules);
  return *registry;
}

// Rules of ops that a library brings; the ops are checked, not they.
class PendingRules : public PendingRegistrations::Part {
 public:
  void Add(NamedRule rule) { rules_.push_back(std::move(rule)); }
  Status Check(const PendingRegistrations&) const override { return absl::OkStatus(); }
  void Publish() noexcept override { Registry().AddAll(&rules_); }

 private:
  std::list<NamedRule> rules_;
};

}  // namespace

void PartialValueRule::AddTo(OpSpec* op) const {
  if (of_shapes()) op->DescribesShape();
  op->OnRegistration([rule = *this](const std::string& name) {
    if (PendingRegistrations* const pending = PendingRegistrations::Current()) {
      pending->Get<PendingRules>()->Add({name, rule});
    } else {
      Registry().Add({name, rule});
    }
  });
}

const PartialValueRule* PartialValueRule::Find(absl::string_view op) {
  const Rules& rules = Registry().Read();
  const auto it = rules.find(op);
  return it == rules.end() ? nullptr : &it->second;
}

bool IsIndexType(DType type) { return type == DT_INT32 || type == DT_INT64; }

std::optional<int64_t> IfItFits(std::optional<int64_t> element, DType dtype) {
  if (element && dtype == DT_INT32 &&
      (*element < std::numeric_limits<int32_t>::min() ||
       *element > std::numeric_limits<int32_t>::max())) {
    return std::nullopt;
  }
  return element;
}

std::optional<PartialValue> PartialValue::FromTensor(const Tensor& tensor) {
  if (!IsIndexType(tensor.dtype()) || tensor.rank() > 1 ||
      tensor.num_elements() > kMaxConstantElements) {
    return std::nullopt;
  }
  PartialValue value;
  value.is_scalar = tensor.rank() == 0;
  for (const int64_t element : tensor.ints()) value.elements.push_back(element);
  return value;
}

std::optional<PartialValue> PartialValue::Unknown(const PartialShape& shape) {
  if (!shape.has_rank() || shape.rank() > 1) return std::nullopt;
  PartialValue value;
  value.is_scalar = shape.rank() == 0;
  if (!value.is_scalar && (shape.dim(0) < 0 || shape.dim(0) > kMaxConstantElements)) {
    return std::nullopt;
  }
  value.elements.resize(value.is_scalar ? 1 : static_cast<size_t>(shape.dim(0)));
  return value;
}

std::optional<Tensor> PartialValue::ToTensor(DType dtype) const {
  for (const std::optional<int64_t>& element : elements) {
    if (!IfItFits(element, dtype)) return std::nullopt;
  }
  StatusOr<Tensor> tensor =
      Tensor::Allocate(dtype, is_scalar ? Shape() : Shape::Vector(elements.size()));
  if (!tensor.ok()) return std::nullopt;
  for (size_t i = 0; i < elements.size(); ++i) {
    if (dtype == DT_INT32) {
      tensor->mutable_raw<int32_t>()[i] = static_cast<int32_t>(*elements[i]);
    } else {
      tensor->mutable_raw<int64_t>()[i] = *elements[i];
    }
  }
  return *std::move(tensor);
}

std::optional<int64_t> PartialValueContext::OneElement(int i, bool is_scalar) const {
  const std::optional<PartialValue> value = input(i);
  if (!value || value->is_scalar != is_scalar || value->elements.size() != 1) return std::nullopt;
  return value->elements[0];
}

std::optional<PartialValue> FirstInputValue(PartialValueContext* c) { return c->input(0); }

std::optional<PartialValue> ReshapedInputValue(PartialValueContext* c) {
  std::optional<PartialValue> value = c->input(0);
  const PartialShape shape = c->output_shape();
  if (!value || !shape.IsFullyDefined() || shape.rank() > 1 ||
      shape.num_elements() != static_cast<int64_t>(value->elements.size())) {
    return std::nullopt;
  }
  value->is_scalar = shape.rank() == 0;
  return value;
}

std::optional<PartialValue> ShapeOfInputValue(PartialValueContext* c) {
  if (c->output() >= c->num_inputs()) return std::nullopt;
  const PartialShape shape = c->input_shape(c->output());
  if (!shape.has_rank()) return std::nullopt;
  PartialValue value;
  for (const int64_t dim : shape.dims()) {
    value.elements.push_back(dim < 0 ? std::nullopt : std::optional<int64_t>(dim));
  }
  return value;
}

}  // namespace millrace
