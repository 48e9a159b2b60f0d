// SPDX-License-Identifier: Apache-2.0
#include "data/testing/dataset_testing.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace::data {
namespace {

std::string ValueText(const Tensor& tensor, int64_t i) {
  const size_t at = static_cast<size_t>(i);
  switch (tensor.dtype()) {
    case DT_INT64:
      return absl::StrCat(tensor.flat<int64_t>()[at]);
    case DT_INT32:
      return absl::StrCat(tensor.flat<int32_t>()[at]);
    case DT_FLOAT:
      return absl::StrCat(tensor.flat<float>()[at]);
    case DT_DOUBLE:
      return absl::StrCat(tensor.flat<double>()[at]);
    case DT_BOOL:
      return tensor.flat<bool>()[at] ? "true" : "false";
    case DT_STRING:
      return tensor.flat<std::string>()[at];
    default:
      return DTypeName(tensor.dtype());
  }
}

std::string TensorText(const Tensor& tensor, int dim, int64_t* next) {
  if (dim == tensor.rank()) return ValueText(tensor, (*next)++);
  std::string text = "[";
  for (int64_t i = 0; i < tensor.dim(dim); ++i) {
    if (i > 0 && dim + 1 == tensor.rank()) text += " ";
    text += TensorText(tensor, dim + 1, next);
  }
  return text + "]";
}

}  // namespace

std::string TextOf(const Element& element) {
  return absl::StrJoin(element, "|", [](std::string* out, const Tensor& tensor) {
    int64_t next = 0;
    absl::StrAppend(out, TensorText(tensor, 0, &next));
  });
}

std::vector<std::string> RestOf(Iterator* iterator, int most) {
  std::vector<std::string> texts;
  Element element;
  while (static_cast<int>(texts.size()) < most) {
    const StatusOr<bool> more = iterator->Next(&element);
    if (!more.ok()) {
      texts.push_back(absl::StrCat("<", more.status().message(), ">"));
      if (absl::IsCancelled(more.status())) break;
    } else if (*more) {
      texts.push_back(TextOf(element));
    } else {
      break;
    }
  }
  return texts;
}

std::vector<std::string> ElementsOf(const Dataset& dataset, const IteratorOptions& options) {
  StatusOr<std::unique_ptr<Iterator>> iterator = dataset.MakeIterator(options);
  if (!iterator.ok()) return {absl::StrCat("<", iterator.status().message(), ">")};
  return RestOf(iterator->get());
}

std::string TextOf(const Dataset& dataset, const IteratorOptions& options) {
  return absl::StrJoin(ElementsOf(dataset, options), " ");
}

void ExpectStatesGoOn(const Dataset& dataset, const IteratorOptions& options) {
  SCOPED_TRACE(dataset.DebugString());
  const std::vector<std::string> all = ElementsOf(dataset, options);
  for (size_t given = 0; given <= all.size(); ++given) {
    SCOPED_TRACE(absl::StrCat("saved after ", given, " elements"));
    ASSERT_OK_AND_ASSIGN(const auto iterator, dataset.MakeIterator(options));
    RestOf(iterator.get(), static_cast<int>(given));
    ASSERT_OK_AND_ASSIGN(const std::string state, iterator->Save());
    const std::vector<std::string> rest(all.begin() + static_cast<int64_t>(given), all.end());
    EXPECT_EQ(RestOf(iterator.get()), rest) << "saving changes what comes";

    // Another base seed: what chance drew is part of the state.
    ASSERT_OK_AND_ASSIGN(const auto other, dataset.MakeIterator());
    RestOf(other.get(), 1);
    ASSERT_OK(other->Restore(state));
    EXPECT_EQ(RestOf(other.get()), rest);
    if (given != all.size() / 2) continue;
    for (size_t size = 0; size < state.size(); ++size) {
      ASSERT_OK_AND_ASSIGN(const auto cut, dataset.MakeIterator(options));
      if (cut->Restore(absl::string_view(state).substr(0, size)).ok()) RestOf(cut.get());
    }
    EXPECT_FALSE(other->Restore(state + "x").ok()) << "bytes behind the end";
  }
}

void ExpectKeepsItsSpec(const Dataset& dataset) {
  SCOPED_TRACE(dataset.DebugString());
  ASSERT_OK(dataset.status());
  ASSERT_OK_AND_ASSIGN(const auto iterator, dataset.MakeIterator());
  int64_t count = 0;
  for (Element element; count < 1000; ++count) {
    ASSERT_OK_AND_ASSIGN(const bool more, iterator->Next(&element));
    if (!more) break;
    EXPECT_OK(CheckElement("element", dataset.spec(), element));
  }
  const int64_t cardinality = dataset.cardinality();
  if (cardinality != kUnknownCardinality) {
    EXPECT_EQ(count, cardinality == kInfiniteCardinality ? 1000 : cardinality);
  }
}

}  // namespace millrace::data
