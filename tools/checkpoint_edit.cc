// SPDX-License-Identifier: Apache-2.0
#include "tools/checkpoint_edit.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "core/did_you_mean.h"
#include "core/tensor.h"
#include "formats/npy.h"
#include "re2/re2.h"
#include "saver/tensor_bundle.h"
#include "tools/floating_values.h"

namespace millrace {
namespace {

StatusOr<std::unique_ptr<BundleWriter>> OpenOutput(FileSystem* fs, const std::string& prefix) {
  if (fs->FileExists(BundleIndexPath(prefix))) {
    return absl::AlreadyExistsError(
        absl::StrCat("Checkpoint '", prefix, "' must not be there, got one; choose another name"));
  }
  return BundleWriter::Open(fs, prefix);
}

Status CheckExpression(const RE2& expression) {
  if (expression.ok()) return absl::OkStatus();
  return InvalidArgument("Expression '", expression.pattern(), "': ", expression.error());
}

std::string Description(const CheckpointFile::Entry& entry) {
  return absl::StrCat(entry.name, " ", DTypeName(entry.dtype), " ", entry.shape.ToString());
}

// The names that the tensors get, in the order of the entries; "": left out.
StatusOr<std::vector<std::string>> NewNames(const CheckpointFile& from,
                                            const CheckpointEdit& edit) {
  std::map<std::string, std::string> renamed;
  for (const auto& [old_name, new_name] : edit.renamed) {
    if (from.Find(old_name) == nullptr) {
      DidYouMean best(old_name);
      for (const auto& entry : from.entries) best.Consider(entry.name);
      return absl::NotFoundError(absl::StrCat("Checkpoint '", from.prefix,
                                              "': a tensor to rename must be in it, got '",
                                              old_name, "'", best.Hint()));
    }
    renamed[old_name] = new_name;
  }
  std::vector<std::pair<std::unique_ptr<RE2>, std::string>> replaced;
  for (const auto& [pattern, rewrite] : edit.replaced) {
    auto expression = std::make_unique<RE2>(pattern, RE2::Quiet);
    MR_RETURN_IF_ERROR(CheckExpression(*expression));
    std::string error;
    if (!expression->CheckRewriteString(rewrite, &error)) {
      return InvalidArgument("Replacement '", rewrite, "' of '", pattern, "': ", error);
    }
    replaced.emplace_back(std::move(expression), rewrite);
  }
  const RE2 kept(edit.kept, RE2::Quiet), dropped(edit.dropped, RE2::Quiet);
  MR_RETURN_IF_ERROR(CheckExpression(kept));
  MR_RETURN_IF_ERROR(CheckExpression(dropped));

  std::vector<std::string> names;
  std::map<std::string, std::string> taken;  // new name -> old name
  for (const auto& entry : from.entries) {
    std::string name = entry.name;
    if ((!edit.kept.empty() && !RE2::FullMatch(name, kept)) ||
        (!edit.dropped.empty() && RE2::FullMatch(name, dropped))) {
      names.emplace_back();
      continue;
    }
    if (const auto found = renamed.find(name); found != renamed.end()) {
      name = found->second;
    } else {
      for (const auto& [expression, rewrite] : replaced) {
        RE2::GlobalReplace(&name, *expression, rewrite);
      }
    }
    const auto [other, is_new] = taken.emplace(name, entry.name);
    if (name.empty() || !is_new) {
      return InvalidArgument("Checkpoint '", from.prefix, "': '", entry.name,
                             "' must get a name of its own, got '", name, "'",
                             is_new ? "" : absl::StrCat(", which '", other->second, "' has"));
    }
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace

StatusOr<int64_t> EditCheckpoint(FileSystem* fs, const CheckpointFile& from,
                                 const CheckpointEdit& edit, const std::string& to) {
  if (edit.dtype != DT_INVALID && !IsFloating(edit.dtype)) {
    return InvalidArgument("Checkpoint '", to, "': a dtype must be half, bfloat16, float or double",
                           ", got ", DTypeName(edit.dtype));
  }
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, NewNames(from, edit));
  MR_ASSIGN_OR_RETURN(const auto writer, OpenOutput(fs, to));
  // A bundle is sorted by name; small tensors in that order are read in one go.
  std::map<std::string, const CheckpointFile::Entry*> by_name;
  for (size_t i = 0; i < names.size(); ++i) {
    if (!names[i].empty()) by_name[names[i]] = &from.entries[i];
  }
  for (const auto& [name, entry] : by_name) {
    MR_ASSIGN_OR_RETURN(Tensor tensor, from.read(entry->name));
    if (edit.dtype != DT_INVALID && IsFloating(tensor.dtype()) && tensor.dtype() != edit.dtype) {
      MR_ASSIGN_OR_RETURN(tensor, TensorOfDoubles(DoublesOf(tensor), edit.dtype, tensor.shape()));
    }
    MR_RETURN_IF_ERROR(writer->Add(name, tensor));
  }
  MR_RETURN_IF_ERROR(writer->Finish());
  return static_cast<int64_t>(by_name.size());
}

StatusOr<int64_t> AverageCheckpoints(FileSystem* fs, absl::Span<const CheckpointFile> from,
                                     const std::string& to) {
  if (from.empty()) return InvalidArgument("Average: there must be a checkpoint, got none");
  const CheckpointFile& last = from.back();
  for (const CheckpointFile& other : from) {
    for (const auto& entry : last.entries) {
      const auto* const same = other.Find(entry.name);
      if (same != nullptr && same->dtype == entry.dtype && same->shape == entry.shape) continue;
      return InvalidArgument("Checkpoint '", other.prefix, "': must have ", Description(entry),
                             " as '", last.prefix, "', got ",
                             same == nullptr ? "no tensor of this name" : Description(*same));
    }
    if (other.entries.size() != last.entries.size()) {
      return InvalidArgument("Checkpoint '", other.prefix, "': must have the tensors of '",
                             last.prefix, "', ", last.entries.size(), ", got ",
                             other.entries.size());
    }
  }
  MR_ASSIGN_OR_RETURN(const auto writer, OpenOutput(fs, to));
  for (const auto& entry : last.entries) {
    MR_ASSIGN_OR_RETURN(Tensor tensor, last.read(entry.name));
    if (IsFloating(entry.dtype) && from.size() > 1) {
      std::vector<double> sum = DoublesOf(tensor);
      for (const CheckpointFile& other : from.first(from.size() - 1)) {
        MR_ASSIGN_OR_RETURN(const Tensor more, other.read(entry.name));
        const std::vector<double> values = DoublesOf(more);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
      }
      for (double& value : sum) value /= static_cast<double>(from.size());
      MR_ASSIGN_OR_RETURN(tensor, TensorOfDoubles(sum, entry.dtype, entry.shape));
    }
    MR_RETURN_IF_ERROR(writer->Add(entry.name, tensor));
  }
  MR_RETURN_IF_ERROR(writer->Finish());
  return static_cast<int64_t>(last.entries.size());
}

StatusOr<int64_t> CheckpointToNpz(FileSystem* fs, const CheckpointFile& from,
                                  const std::string& npz) {
  NamedArrays arrays;
  for (const auto& entry : from.entries) {
    MR_ASSIGN_OR_RETURN(Tensor tensor, from.read(entry.name));
    arrays.emplace_back(entry.name, std::move(tensor));
  }
  MR_RETURN_IF_ERROR(WriteNpz(fs, npz, arrays));
  return static_cast<int64_t>(arrays.size());
}

StatusOr<int64_t> NpzToCheckpoint(FileSystem* fs, const std::string& npz, const std::string& to) {
  MR_ASSIGN_OR_RETURN(NamedArrays arrays, ReadNpz(fs, npz));
  std::sort(arrays.begin(), arrays.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  MR_ASSIGN_OR_RETURN(const auto writer, OpenOutput(fs, to));
  for (const auto& [name, tensor] : arrays) MR_RETURN_IF_ERROR(writer->Add(name, tensor));
  MR_RETURN_IF_ERROR(writer->Finish());
  return static_cast<int64_t>(arrays.size());
}

namespace {

// "": they are the same.
std::string DifferenceOf(const Tensor& a, const Tensor& b, double tolerance) {
  int64_t differing = 0;
  double most = 0;
  if (IsFloating(a.dtype())) {
    const std::vector<double> x = DoublesOf(a), y = DoublesOf(b);
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
      const double by = std::abs(x[i] - y[i]);
      if (by <= tolerance) continue;
      ++differing;
      most = std::isnan(by) ? HUGE_VAL : std::max(most, by);
    }
    if (differing == 0) return "";
    return absl::StrCat(differing, " of ", a.num_elements(), " values differ, by at most ", most);
  }
  if (a.dtype() == DT_STRING) {
    const auto x = a.flat<std::string>(), y = b.flat<std::string>();
    for (size_t i = 0; i < x.size(); ++i) differing += x[i] == y[i] ? 0 : 1;
  } else {
    const absl::Span<const char> x = a.bytes(), y = b.bytes();
    const size_t size = DTypeSize(a.dtype());
    for (size_t i = 0; i + size <= x.size(); i += size) {
      differing += std::equal(x.begin() + static_cast<int64_t>(i),
                              x.begin() + static_cast<int64_t>(i + size),
                              y.begin() + static_cast<int64_t>(i))
                       ? 0
                       : 1;
    }
  }
  if (differing == 0) return "";
  return absl::StrCat(differing, " of ", a.num_elements(), " values differ");
}

}  // namespace

StatusOr<std::vector<std::string>> DifferencesOf(const CheckpointFile& a, const CheckpointFile& b,
                                                 double tolerance) {
  std::vector<std::string> differences;
  for (const auto& entry : a.entries) {
    if (b.Find(entry.name) == nullptr) {
      differences.push_back(absl::StrCat("only in '", a.prefix, "': ", Description(entry)));
    }
  }
  for (const auto& entry : b.entries) {
    if (a.Find(entry.name) == nullptr) {
      differences.push_back(absl::StrCat("only in '", b.prefix, "': ", Description(entry)));
    }
  }
  for (const auto& entry : a.entries) {
    const auto* const other = b.Find(entry.name);
    if (other == nullptr) continue;
    if (other->dtype != entry.dtype) {
      differences.push_back(absl::StrCat(entry.name, ": dtype ", DTypeName(entry.dtype), " and ",
                                         DTypeName(other->dtype)));
    } else if (other->shape != entry.shape) {
      differences.push_back(absl::StrCat(entry.name, ": shape ", entry.shape.ToString(), " and ",
                                         other->shape.ToString()));
    } else {
      MR_ASSIGN_OR_RETURN(const Tensor x, a.read(entry.name));
      MR_ASSIGN_OR_RETURN(const Tensor y, b.read(entry.name));
      const std::string difference = DifferenceOf(x, y, tolerance);
      if (!difference.empty()) differences.push_back(absl::StrCat(entry.name, ": ", difference));
    }
  }
  return differences;
}

}  // namespace millrace
