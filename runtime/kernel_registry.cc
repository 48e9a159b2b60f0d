// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "core/hash_table.h"
#include "core/mutex.h"
#include "core/status.h"
#include "proto/attr_value.pb.h"
#include "proto/node_def.pb.h"
#include "proto/op_def.pb.h"
#include "runtime/device.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// Kernels by op. A look-up reads an immutable snapshot without a lock; registrations gather until a
// look-up finds that there are some, and publishes a snapshot with them. Snapshots and specs live
// as long as the process: a reader may hold an old one.
class Registry {
 public:
  using Specs = std::vector<const KernelSpec*>;

  static Registry& Get() {
    static Registry* registry = new Registry;  // never destroyed: kernels may be built at exit
    return *registry;
  }

  void Add(absl::string_view op, const KernelSpec& spec) {
    MutexLock lock(&mu_);
    pending_.emplace_back(op, new KernelSpec(spec));
    has_pending_.store(true, std::memory_order_release);
  }

  // Null when the op has none.
  const Specs* Find(absl::string_view op) {
    if (ABSL_PREDICT_FALSE(has_pending_.load(std::memory_order_acquire))) Publish();
    const Snapshot& snapshot = *snapshot_.load(std::memory_order_acquire);
    const auto it = snapshot.find(op);
    return it == snapshot.end() ? nullptr : &it->second;
  }

 private:
  using Snapshot = HashMap<std::string, Specs>;

  void Publish() {
    MutexLock lock(&mu_);
    if (pending_.empty()) return;
    auto next = std::make_unique<Snapshot>(*snapshot_.load(std::memory_order_relaxed));
    for (const auto& [op, spec] : pending_) (*next)[op].push_back(spec);
    pending_.clear();
    snapshot_.store(next.get(), std::memory_order_release);
    snapshots_.push_back(std::move(next));
    has_pending_.store(false, std::memory_order_release);
  }

  Mutex mu_;
  std::vector<std::pair<std::string, const KernelSpec*>> pending_ ABSL_GUARDED_BY(mu_);
  // All that were published: readers may hold any.
  std::vector<std::unique_ptr<const Snapshot>> snapshots_ ABSL_GUARDED_BY(mu_);
  const Snapshot empty_;
  // release after pending_ (true) or snapshot_ (false); acquire: who sees true publishes before it
  // looks, who sees false finds all that was registered before.
  std::atomic<bool> has_pending_{false};
  // release by who publishes, acquire by readers.
  std::atomic<const Snapshot*> snapshot_{&empty_};
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
  const Registry::Specs* specs = Registry::Get().Find(node.op());
  const KernelSpec* found = nullptr;
  if (specs != nullptr) {
    for (const KernelSpec* spec : *specs) {
      if (!Fits(*spec, node, device)) continue;
      if (found != nullptr) {
        return Internal("Op '", node.op(), "' must have one kernel per ",
                        "type, got two that fit: ", SpecText(*found), " and ", SpecText(*spec));
      }
      found = spec;
    }
  }
  if (found != nullptr) return found;
  const std::string registered = DescribeKernels(node.op());
  return Unimplemented("No kernel for op '", node.op(), "' on device type '", device,
                       "' with attrs {", AttrsText(node),
                       "}; registered: ", registered.empty() ? "<none>" : registered);
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
  op->OnRegistration([spec = *this](const std::string& name) { Registry::Get().Add(name, spec); });
}

KernelRegistration::KernelRegistration(absl::string_view op, const KernelSpec& spec) {
  Registry::Get().Add(op, spec);
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
  const Registry::Specs* specs = Registry::Get().Find(op);
  if (specs == nullptr) return std::string();
  std::vector<std::string> texts;
  for (const KernelSpec* spec : *specs) texts.push_back(SpecText(*spec));
  std::sort(texts.begin(), texts.end());
  return absl::StrJoin(texts, "; ");
}

bool HasAnyKernel(absl::string_view op) { return Registry::Get().Find(op) != nullptr; }

}  // namespace millrace
