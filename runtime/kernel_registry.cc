// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <map>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_join.h"
#include "core/mutex.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// Filled before main by KernelRegistrations, frozen by the first look-up; from then on it is read
// without a lock.
class Registry {
 public:
  static Registry& Get() {
    static Registry* registry = new Registry;  // never destroyed: kernels may be built at exit
    return *registry;
  }

  void Add(const KernelSpec& spec) {
    MutexLock lock(&mu_);
    if (frozen_.load(std::memory_order_relaxed)) {
      late_[spec.op()] = absl::FailedPreconditionError(
          absl::StrCat("Kernel of op '", spec.op(),
                       "' was registered after the first look-up; link its library into the "
                       "program instead of loading it later"));
      has_late_.store(true, std::memory_order_release);
      return;
    }
    specs_[spec.op()].push_back(spec);
  }

  // Null when the op has none.
  const std::vector<KernelSpec>* Find(absl::string_view op) {
    if (!frozen_.load(std::memory_order_acquire)) {
      MutexLock lock(&mu_);
      frozen_.store(true, std::memory_order_release);
    }
    const auto it = specs_.find(op);
    return it == specs_.end() ? nullptr : &it->second;
  }

  // Why a kernel of `op` could not be registered.
  Status LateRegistration(absl::string_view op) {
    if (!has_late_.load(std::memory_order_acquire)) return absl::OkStatus();
    MutexLock lock(&mu_);
    const auto it = late_.find(op);
    return it == late_.end() ? absl::OkStatus() : it->second;
  }

 private:
  Mutex mu_;
  // release: after it specs_ does not change; acquire: a reader sees all of specs_.
  std::atomic<bool> frozen_{false};
  std::atomic<bool> has_late_{false};  // release/acquire: skips the lock in the usual case
  absl::flat_hash_map<std::string, std::vector<KernelSpec>> specs_;  // written while not frozen
  absl::flat_hash_map<std::string, Status> late_ ABSL_GUARDED_BY(mu_);
};

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
  MR_RETURN_IF_ERROR(Registry::Get().LateRegistration(node.op()));
  const std::vector<KernelSpec>* specs = Registry::Get().Find(node.op());
  const KernelSpec* found = nullptr;
  if (specs != nullptr) {
    for (const KernelSpec& spec : *specs) {
      if (!Fits(spec, node, device)) continue;
      if (found != nullptr) {
        return absl::InternalError(absl::StrCat("Op '", node.op(), "' must have one kernel per ",
                                                "type, got two that fit: ", SpecText(*found),
                                                " and ", SpecText(spec)));
      }
      found = &spec;
    }
  }
  if (found != nullptr) return found;
  const std::string registered = DescribeKernels(node.op());
  return absl::UnimplementedError(
      absl::StrCat("No kernel for op '", node.op(), "' on device type '", device, "' with attrs {",
                   AttrsText(node), "}; registered: ", registered.empty() ? "<none>" : registered));
}

}  // namespace

KernelSpec::KernelSpec(absl::string_view op, Factory factory)
    : op_(op), factory_(std::move(factory)) {}

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

KernelRegistration::KernelRegistration(const KernelSpec& spec) { Registry::Get().Add(spec); }

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
  const std::vector<KernelSpec>* specs = Registry::Get().Find(op);
  if (specs == nullptr) return std::string();
  std::vector<std::string> texts;
  for (const KernelSpec& spec : *specs) texts.push_back(SpecText(spec));
  std::sort(texts.begin(), texts.end());
  return absl::StrJoin(texts, "; ");
}

bool HasAnyKernel(absl::string_view op) { return Registry::Get().Find(op) != nullptr; }

}  // namespace millrace
