// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "core/hash_table.h"
#include "core/snapshot_registry.h"
#include "core/status.h"
#include "graph/pending_registrations.h"
#include "proto/attr_value.pb.h"
#include "proto/node_def.pb.h"
#include "proto/op_def.pb.h"
#include "runtime/device.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Specs = std::vector<std::shared_ptr<const KernelSpec>>;
// Kernels by op.
using Kernels = HashMap<std::string, Specs>;
using NamedKernel = std::pair<std::string, std::shared_ptr<const KernelSpec>>;

void AddToKernels(const std::list<NamedKernel>& kernels, Kernels* next) {
  for (const auto& [op, spec] : kernels) (*next)[op].push_back(spec);
}

using KernelRegistry = SnapshotRegistry<NamedKernel, Kernels>;
KernelRegistry& Registry() {
  static KernelRegistry* const registry =
      new KernelRegistry(&AddToKernels);  // kernels may be built at exit
  return *registry;
}

// Null when the op has none.
const Specs* FindSpecs(absl::string_view op) {
  const Kernels& kernels = Registry().Read();
  const auto it = kernels.find(op);
  return it == kernels.end() ? nullptr : &it->second;
}

// Whether a node may exist that both fit.
bool Overlap(const KernelSpec& a, const KernelSpec& b) {
  if (a.device() != b.device()) return false;
  for (const auto& [name, allowed] : a.types()) {
    for (const auto& [other_name, other_allowed] : b.types()) {
      if (name == other_name &&
          std::find_first_of(allowed.begin(), allowed.end(), other_allowed.begin(),
                             other_allowed.end()) == allowed.end()) {
        return false;
      }
    }
  }
  return true;
}

// The attr of the node, or the op's default when the node leaves it out.
const tensorflow::AttrValue* FindAttr(const tensorflow::NodeDef& node, absl::string_view name) {
  const auto it = node.attr().find(std::string(name));
  if (it != node.attr().end()) return &it->second;
  const OpEntry* entry = LookUpOp(node.op());
  if (entry == nullptr) return nullptr;
  for (const auto& attr : entry->def.attr()) {
    if (attr.name() == name && attr.has_default_value()) return &attr.default_value();
  }
  return nullptr;
}

bool Fits(const KernelSpec& spec, const tensorflow::NodeDef& node, absl::string_view device) {
  if (spec.device() != device) return false;
  for (const auto& [name, allowed] : spec.types()) {
    const auto is_allowed = [&allowed = allowed](int number) {
      const DType type = static_cast<DType>(number);
      return std::find(allowed.begin(), allowed.end(), type) != allowed.end();
    };
    const tensorflow::AttrValue* attr = FindAttr(node, name);
    if (attr == nullptr) return false;
    if (attr->value_case() == tensorflow::AttrValue::kList) {
      if (!std::all_of(attr->list().type().begin(), attr->list().type().end(), is_allowed)) {
        return false;
      }
    } else if (!is_allowed(attr->type())) {
      return false;
    }
  }
  return true;
}

// "CPU [T in {float, double}]".
std::string SpecText(const KernelSpec& spec) {
  std::vector<std::string> parts;
  for (const auto& [name, allowed] : spec.types()) {
    parts.push_back(absl::StrCat(
        name, " in {",
        absl::StrJoin(allowed, ", ",
                      [](std::string* out, DType type) { out->append(DTypeName(type)); }),
        "}"));
  }
  if (parts.empty()) return spec.device();
  return absl::StrCat(spec.device(), " [", absl::StrJoin(parts, ", "), "]");
}

std::string AttrsText(const tensorflow::NodeDef& node) {
  std::map<std::string, std::string> sorted;
  for (const auto& [name, value] : node.attr()) {
    if (!name.empty() && name[0] == '_') continue;
    sorted[name] = AttrToString(value);
  }
  return absl::StrJoin(sorted, ", ", absl::PairFormatter("="));
}

StatusOr<const KernelSpec*> FindKernel(const tensorflow::NodeDef& node, absl::string_view device) {
  const Specs* specs = FindSpecs(node.op());
  const KernelSpec* found = nullptr;
  if (specs != nullptr) {
    for (const auto& spec : *specs) {
      if (!Fits(*spec, node, device)) continue;
      if (found != nullptr) {
        return Internal("Op '", node.op(), "' must have one kernel per ",
                        "type, got two that fit: ", SpecText(*found), " and ", SpecText(*spec));
      }
      found = spec.get();
    }
  }
  if (found != nullptr) return found;
  const std::string registered = DescribeKernels(node.op());
  return Unimplemented("No kernel for op '", node.op(), "' on device type '", device,
                       "' with attrs {", AttrsText(node),
                       "}; registered: ", registered.empty() ? "<none>" : registered);
}

// Those of a library under load.
class PendingKernels : public PendingRegistrations::Part {
 public:
  void Add(NamedKernel kernel) { kernels_.push_back(std::move(kernel)); }

  Status Check(const PendingRegistrations& all) const override {
    HashMap<std::string, Specs> checked;
    for (const auto& [op, spec] : kernels_) {
      if (!all.HasOp(op) && LookUpOp(op) == nullptr) {
        return absl::NotFoundError(absl::StrCat(
            "kernel of op '", op, "' on ", SpecText(*spec),
            ": its op must be registered by the program or by the library, got neither"));
      }
      const Specs* const registered = FindSpecs(op);
      for (const Specs* others : {registered, static_cast<const Specs*>(&checked[op])}) {
        if (others == nullptr) continue;
        for (const auto& other : *others) {
          if (!Overlap(*spec, *other)) continue;
          return absl::AlreadyExistsError(absl::StrCat(
              "kernel of op '", op, "' on ", SpecText(*spec),
              ": no node may fit two kernels, got one of ",
              others == registered ? "the program" : "the same library", " on ", SpecText(*other)));
        }
      }
      checked[op].push_back(spec);
    }
    return absl::OkStatus();
  }
  void Publish() noexcept override { Registry().AddAll(&kernels_); }

 private:
  std::list<NamedKernel> kernels_;
};

void AddKernel(absl::string_view op, const KernelSpec& spec) {
  NamedKernel kernel(op, std::make_shared<const KernelSpec>(spec));
  if (PendingRegistrations* const pending = PendingRegistrations::Current()) {
    pending->Get<PendingKernels>()->Add(std::move(kernel));
  } else {
    Registry().Add(std::move(kernel));
  }
}

}  // namespace

KernelSpec::KernelSpec(Factory factory, ShapeFn infer)
    : factory_(std::move(factory)), infer_(std::move(infer)) {}

KernelSpec& KernelSpec::Device(absl::string_view type) {
  device_ = std::string(type);
  return *this;
}

KernelSpec& KernelSpec::Type(absl::string_view attr, DType dtype) {
  for (auto& [name, allowed] : types_) {
    if (name == attr) {
      allowed.push_back(dtype);
      return *this;
    }
  }
  types_.emplace_back(std::string(attr), std::vector<DType>{dtype});
  return *this;
}

KernelSpec& KernelSpec::Types(absl::string_view attr, std::initializer_list<DType> dtypes) {
  for (const DType dtype : dtypes) Type(attr, dtype);
  return *this;
}

KernelSpec& KernelSpec::Types(absl::string_view attr, absl::string_view word) {
  for (const DType dtype : TypesOfWord(word)) Type(attr, dtype);
  return *this;
}

KernelSpec& KernelSpec::TypesWith(absl::string_view attr, absl::FunctionRef<bool(DType)> has) {
  for (int number = 1; number <= kNumDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    if (has(dtype)) Type(attr, dtype);
  }
  return *this;
}

KernelSpec& KernelSpec::HostMemory(absl::string_view arg) {
  host_memory_.emplace_back(arg);
  return *this;
}

void KernelSpec::AddTo(OpSpec* op) const {
  if (infer_) op->Shape(infer_);
  op->OnRegistration([spec = *this](const std::string& name) { AddKernel(name, spec); });
}

KernelRegistration::KernelRegistration(absl::string_view op, const KernelSpec& spec) {
  AddKernel(op, spec);
}

StatusOr<std::unique_ptr<Kernel>> MakeKernel(KernelConstruction* construction) {
  MR_ASSIGN_OR_RETURN(const KernelSpec* spec,
                      FindKernel(construction->node(), construction->device()->type));
  std::unique_ptr<Kernel> kernel = spec->factory()();
  MR_RETURN_IF_ERROR(kernel->Init(construction));
  return kernel;
}

bool HasKernel(const tensorflow::NodeDef& node, absl::string_view device_type) {
  return FindKernel(node, device_type).ok();
}

std::string DescribeKernels(absl::string_view op) {
  const Specs* specs = FindSpecs(op);
  if (specs == nullptr) return std::string();
  std::vector<std::string> texts;
  for (const auto& spec : *specs) texts.push_back(SpecText(*spec));
  std::sort(texts.begin(), texts.end());
  return absl::StrJoin(texts, "; ");
}

bool HasAnyKernel(absl::string_view op) { return FindSpecs(op) != nullptr; }

}  // namespace millrace
