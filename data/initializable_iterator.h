// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_INITIALIZABLE_ITERATOR_H_
#define MILLRACE_DATA_INITIALIZABLE_ITERATOR_H_

// InitializableIterator: a Dataset of this process as the input of a graph.
//
//   auto input = data::MakeInitializableIterator(scope.WithDevice("/cpu:0"), dataset);
//   ... model on input.next[0], input.next[1] ...
//   session->Run({{input.dataset, input.feed}}, {}, {input.initializer});
//   session->Run({loss, train});       // until OutOfRange "End of sequence"
//
// The initializer is run once after a session was created, and again after every recovery: each run
// begins at the start of the dataset. The graph knows nothing of the dataset but the types and
// shapes of its elements, so it may be saved, exported and sent; the dataset is fed by reference
// and stays here. Another dataset with such elements may be fed as well, by DatasetFeed of
// data/dataset_variant.h: {{input.dataset, data::DatasetFeed(other)}}.
//
// The nodes are where `at` puts them: on the task that runs this program, not on a ps.

#include <vector>

#include "core/tensor.h"
#include "data/dataset.h"
#include "data/element.h"
#include "data/iterator.h"
#include "graph/scope.h"

namespace millrace::data {

struct InitializableIterator {
  std::vector<Output> next;  // the components of the next element, together
  Output handle;             // of the iterator: resource scalar
  Output dataset;            // placeholder, variant scalar: what the initializer is fed
  Operation initializer;
  Tensor feed;  // the dataset; keeps it alive
};

// Named "iterator", or as WithName asks for. All parts are invalid after an error: that of the
// dataset, or InvalidArgument when its spec is not known.
InitializableIterator MakeInitializableIterator(ScopeAt at, const Dataset& dataset,
                                                const IteratorOptions& options = {});
// For datasets that are fed later.
InitializableIterator MakeInitializableIterator(ScopeAt at, const ElementSpec& spec);

}  // namespace millrace::data

#endif  // MILLRACE_DATA_INITIALIZABLE_ITERATOR_H_
