// SPDX-License-Identifier: Apache-2.0
#include "graph/later_attrs.h"

#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/deterministic_bytes.h"
#include "core/hash_table.h"
#include "core/snapshot_registry.h"
#include "graph/attr.h"
#include "graph/op_registry.h"
#include "graph/pending_registrations.h"
#include "proto/attr_value.pb.h"
#include "proto/node_def.pb.h"
#include "proto/op_def.pb.h"

namespace millrace {
namespace {

using tensorflow::OpDef;

struct Stated {
  std::string op, spec;
  LaterAttr::Use use;
};

// What an op states, as the definition of an op that has nothing else.
struct Known {
  std::shared_ptr<const OpDef> def = std::make_shared<OpDef>();
  std::vector<LaterAttr::Use> uses;  // of the attrs of `def`
  Status error;                      // of the first spec that is wrong
};
using AllKnown = HashMap<std::string, Known>;

void AddToKnown(const std::list<Stated>& all, AllKnown* next) {
  for (const Stated& stated : all) {
    Known& known = (*next)[stated.op];
    const StatusOr<OpEntry> parsed =
        OpSpec(stated.op).Attr(stated.spec).Shape([](auto*) { return absl::OkStatus(); }).Build();
    if (!parsed.ok() || !parsed->def.attr(0).has_default_value()) {
      known.error.Update(absl::InternalError(
          parsed.ok() ? absl::StrCat("later attr '", stated.spec, "' must have a default")
                      : std::string(parsed.status().message())));
      continue;
    }
    // Readers hold the snapshot's definition.
    auto def = std::make_shared<OpDef>(*known.def);
    *def->add_attr() = parsed->def.attr(0);
    known.def = std::move(def);
    known.uses.push_back(stated.use);
  }
}

using LaterAttrRegistry = SnapshotRegistry<Stated, AllKnown>;
LaterAttrRegistry& Registry() {
  static LaterAttrRegistry* const registry = new LaterAttrRegistry(&AddToKnown);
  return *registry;
}

// Those of ops that a library brings; the ops are checked, not they.
class PendingLaterAttrs : public PendingRegistrations::Part {
 public:
  void Add(Stated stated) { all_.push_back(std::move(stated)); }
  Status Check(const PendingRegistrations&) const override { return absl::OkStatus(); }
  void Publish() noexcept override { Registry().AddAll(&all_); }

 private:
  std::list<Stated> all_;
};

const Known* Find(absl::string_view op) {
  const AllKnown& all = Registry().Read();
  const auto it = all.find(op);
  return it == all.end() ? nullptr : &it->second;
}

}  // namespace

void LaterAttr::AddTo(OpSpec* op) const {
  op->OnRegistration([spec = spec_, use = use_](const std::string& name) {
    if (PendingRegistrations* const pending = PendingRegistrations::Current()) {
      pending->Get<PendingLaterAttrs>()->Add({name, spec, use});
    } else {
      Registry().Add({name, spec, use});
    }
  });
}

Status CheckLaterAttrs(const tensorflow::NodeDef& node) {
  const Known* const known = Find(node.op());
  if (known == nullptr) return absl::OkStatus();
  MR_RETURN_IF_ERROR(known->error);
  for (int i = 0; i < known->def->attr_size(); ++i) {
    const OpDef::AttrDef& rule = known->def->attr(i);
    const auto it = node.attr().find(rule.name());
    // A function gives its attrs their values later.
    if (it == node.attr().end() || it->second.value_case() == tensorflow::AttrValue::kPlaceholder) {
      continue;
    }
    MR_RETURN_IF_ERROR(ValidateAttrValue(rule, it->second));
    if (known->uses[static_cast<size_t>(i)] == LaterAttr::kHeeded ||
        DeterministicBytes(it->second) == DeterministicBytes(rule.default_value())) {
      continue;
    }
    return InvalidArgument("attr '", rule.name(),
                           "' is unknown to this program and must have its default ",
                           AttrToString(rule.default_value()), ", got ", AttrToString(it->second));
  }
  return absl::OkStatus();
}

bool HeedsLaterAttr(absl::string_view op, absl::string_view attr) {
  const Known* const known = Find(op);
  if (known == nullptr) return false;
  for (int i = 0; i < known->def->attr_size(); ++i) {
    if (known->def->attr(i).name() == attr) {
      return known->uses[static_cast<size_t>(i)] == LaterAttr::kHeeded;
    }
  }
  return false;
}

}  // namespace millrace
