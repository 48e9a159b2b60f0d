// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_TESTING_DATASET_TESTING_H_
#define MILLRACE_DATA_TESTING_DATASET_TESTING_H_

// Datasets in tests: what comes out, as text, and what an iterator's state promises.
//
//   EXPECT_EQ(TextOf(Dataset::Range(5).Batch(2)), "[0 1] [2 3] [4]");
//   ExpectStatesGoOn(Dataset::Range(5).Shuffle(3, {.seed = 1}));
//
// A function that finds a difference fails the current test (not fatally) and goes on.

#include <string>
#include <vector>

#include "core/status.h"
#include "data/dataset.h"
#include "data/element.h"
#include "data/iterator.h"

namespace millrace::data {

// One element: "7", "[1 2]", "[[1 2][3 4]]", its components joined by '|'.
std::string TextOf(const Element& element);
// All elements that `iterator` still gives, at most `most`; an error stands in its place as
// "<message>".
std::vector<std::string> RestOf(Iterator* iterator, int most = 1000);
// All elements of the dataset, joined by ' '.
std::string TextOf(const Dataset& dataset, const IteratorOptions& options = {});
std::vector<std::string> ElementsOf(const Dataset& dataset, const IteratorOptions& options = {});

// Saves after each number of elements; what a fresh iterator gives from there must be what the
// saved one gave. States that were cut anywhere must be refused, or be states. The elements must
// not depend on chance or on what was read before.
void ExpectStatesGoOn(const Dataset& dataset, const IteratorOptions& options = {});

// Every element is as the spec says, and there are as many as the cardinality says, if it does.
void ExpectKeepsItsSpec(const Dataset& dataset);

}  // namespace millrace::data

#endif  // MILLRACE_DATA_TESTING_DATASET_TESTING_H_
