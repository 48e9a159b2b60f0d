// SPDX-License-Identifier: Apache-2.0
#include "data/dataset_variant.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/mutex.h"
#include "core/process_name.h"
#include "core/random_bits.h"
#include "core/resource_handle.h"

namespace millrace::data {
namespace {

constexpr char kTypeName[] = "millrace.Dataset";

class DatasetObject;

// The datasets that were made for feeds and live, by number.
struct FedDatasets {
  const std::string process_key = RandomHexName();
  Mutex mu;
  uint64_t next ABSL_GUARDED_BY(mu) = 1;
  std::map<uint64_t, std::weak_ptr<const DatasetObject>> alive ABSL_GUARDED_BY(mu);

  static FedDatasets& Get() {
    static FedDatasets* const all = new FedDatasets;
    return *all;
  }
};

class DatasetObject : public Resource {
 public:
  DatasetObject(const Dataset& dataset, const IteratorOptions& options)
      : value_{dataset, options} {}
  ~DatasetObject() override {
    if (number_ == 0) return;
    FedDatasets& fed = FedDatasets::Get();
    MutexLock lock(&fed.mu);
    fed.alive.erase(number_);
  }

  // The reference: the process' key, the number, and the process for messages.
  static std::string MakeReferable(const std::shared_ptr<DatasetObject>& object) {
    FedDatasets& fed = FedDatasets::Get();
    MutexLock lock(&fed.mu);
    fed.alive.emplace(fed.next, object);
    object->number_ = fed.next++;
    return absl::StrCat(fed.process_key, ":", object->number_, ":", ProcessName());
  }

  std::string DebugString() const override {
    return absl::StrCat("a dataset (", value_.dataset.DebugString(), ")");
  }
  const DatasetWithOptions& value() const { return value_; }

 private:
  const DatasetWithOptions value_;
  uint64_t number_ = 0;  // 0: not referable
};

Tensor TensorOf(std::shared_ptr<DatasetObject> object, std::string reference) {
  ResourceHandle handle;
  handle.type_name = kTypeName;
  handle.name = std::move(reference);
  handle.resource = std::move(object);
  Variant variant;
  variant.type_name = kTypeName;
  variant.tensors.push_back(Tensor::Scalar<ResourceHandle>(std::move(handle)));
  return Tensor::Scalar<Variant>(std::move(variant));
}

StatusOr<DatasetWithOptions> Referred(const std::string& reference, absl::string_view name) {
  if (reference.empty()) {
    return FailedPrecondition(name, " must be a dataset of this process, ", ProcessName(),
                              ", got what was left of one that has travelled; a dataset never "
                              "does: put the ops that make "
                              "it on the task of the iterator");
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(reference, absl::MaxSplits(':', 2));
  uint64_t number = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &number)) {
    return InvalidArgument(name, " must be a dataset, got a variant that is none");
  }
  FedDatasets& fed = FedDatasets::Get();
  if (parts[0] != fed.process_key) {
    return FailedPrecondition(
        name, " must be a dataset of this process, ", ProcessName(), ", got one of ", parts[2],
        "; a dataset never travels: put the iterator on the task whose process feeds the dataset");
  }
  std::shared_ptr<const DatasetObject> object;
  {
    MutexLock lock(&fed.mu);
    if (const auto found = fed.alive.find(number); found != fed.alive.end()) {
      object = found->second.lock();
    }
  }
  if (object != nullptr) return object->value();
  return FailedPrecondition(
      name,
      " must be a dataset that lives, got one that is gone; keep the tensor that is fed "
      "until the step has ended");
}

}  // namespace

Tensor DatasetFeed(const Dataset& dataset, const IteratorOptions& options) {
  auto object = std::make_shared<DatasetObject>(dataset, options);
  std::string reference = DatasetObject::MakeReferable(object);
  return TensorOf(std::move(object), std::move(reference));
}

Tensor DatasetValue(const Dataset& dataset) {
  return TensorOf(std::make_shared<DatasetObject>(dataset, IteratorOptions()), "");
}

StatusOr<DatasetWithOptions> DatasetOf(const Tensor& tensor, absl::string_view name) {
  if (tensor.dtype() != DT_VARIANT || tensor.rank() != 0) {
    return InvalidArgument(name, " must be a dataset (a variant scalar), got ", tensor.dtype(), " ",
                           tensor.shape());
  }
  const Variant& variant = tensor.raw_scalar<Variant>();
  if (variant.type_name != kTypeName || variant.tensors.size() != 1 ||
      variant.tensors[0].dtype() != DT_RESOURCE || variant.tensors[0].rank() != 0) {
    return InvalidArgument(name, " must be a dataset, got ", tensor.DebugString());
  }
  const auto& handle = variant.tensors[0].raw_scalar<ResourceHandle>();
  if (const auto* object = dynamic_cast<const DatasetObject*>(handle.resource.get())) {
    return object->value();
  }
  return Referred(handle.name, name);
}

}  // namespace millrace::data
