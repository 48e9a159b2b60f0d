// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_DATASET_H_
#define MILLRACE_DATA_DATASET_H_

// Dataset: the immutable description of a sequence of elements, and how it is made of others.
//
//   Dataset rows = Dataset::Range(1000).Map(Square).Shuffle(100, {.seed = 7}).Repeat(3).Batch(32);
//   MR_ASSIGN_OR_RETURN(std::unique_ptr<Iterator> iterator, rows.MakeIterator());
//   for (Element batch;;) {
//     MR_ASSIGN_OR_RETURN(const bool more, iterator->Next(&batch));
//     if (!more) break;                                      // batch[0] is int64 [32]
//   }
//
// An element is a list of tensors, its components; all elements of a dataset have equally many, of
// the dtypes and shapes of its spec, as far as that is known. Nothing is read and no function is
// called before an iterator asks. What state there is belongs to the iterators: any number of them
// may run over one Dataset at once, and each sees the whole sequence.
//
// Cardinality is the number of elements if it is known without reading, or infinite, or unknown.
//
// Blocks inside, tensors at the edge: sources hand rows on in blocks (data/block.h) to what can
// take them (Batch, a RowFunction such as DecodeCsv), so that a row of a file becomes no object of
// its own. A MapFunction gets row by row.
//
// Functions are called from whatever thread needs the element, several at once when a number of
// parallel calls says so; they may block. What they throw becomes an error.
//
// Errors: a combinator that is given what can never work makes a Dataset whose status() says so;
// the first such error stays, and MakeIterator returns it. An error while iterating is returned in
// the place of its element and is over with that: the next call goes on behind it (IgnoreErrors
// drops and counts them), so no dataset returns errors for ever unless it has infinitely many
// elements. A function that returns OutOfRange ends its dataset.
//
// Repeat without end of a dataset that gives no element ends, with a warning.
//
// Thread-safety: a value; any thread. Copying shares the description.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/compression.h"       // IWYU pragma: export
#include "core/status.h"            // IWYU pragma: export
#include "core/tensor.h"            // IWYU pragma: export
#include "data/element.h"           // IWYU pragma: export
#include "data/element_function.h"  // IWYU pragma: export
#include "data/iterator.h"          // IWYU pragma: export

namespace millrace {
class CancellationManager;
}

namespace millrace::data {

class DatasetNode;  // data/dataset_node.h
class RowFunction;  // data/row_function.h

inline constexpr int64_t kInfiniteCardinality = -1;
inline constexpr int64_t kUnknownCardinality = -2;
// The count of Repeat, Take and so on that means: without end.
inline constexpr int64_t kForever = -1;
// The size of a Prefetch that means: what suits the elements.
inline constexpr int64_t kAutotune = -1;

using MapFunction = ElementFunction<StatusOr<Element>(Element)>;
using Predicate = ElementFunction<StatusOr<bool>(const Element&)>;

// Writes the next element, or returns false at the end. Called by one thread at a time; after an
// error or the end never again.
using Generator = std::function<StatusOr<bool>(Element*)>;
// Begins a sequence, once for each pass of each iterator. A generator that blocks must register
// with `cancellation`, which outlives it, and return when it is cancelled.
using GeneratorFactory = std::function<StatusOr<Generator>(CancellationManager* cancellation)>;

struct ShuffleOptions {
  // Both 0: IteratorOptions::seed and the task decide, or chance.
  int64_t seed = 0;
  int64_t seed2 = 0;
  // Each pass of a Repeat has an order of its own.
  bool reshuffle_each_iteration = true;
};

struct MapOptions {
  // Calls at once; results keep their order. 1: in the thread that asks.
  int64_t num_parallel_calls = 1;
  // What the function returns; none: not known. Elements that are otherwise are errors.
  ElementSpec spec = {};
};

struct BatchOptions {
  bool drop_remainder = false;  // a last batch with fewer rows
};

struct PaddedBatchOptions {
  // Of an element's components; -1 or an unknown rank: as large as the largest of the batch. Empty:
  // that for all.
  std::vector<PartialShape> padded_shapes = {};
  // Scalars, one per component; empty: 0, false and "".
  Element padding_values = {};
  bool drop_remainder = false;
};

struct InterleaveOptions {
  int64_t cycle_length = 1;  // datasets that are read in turns
  int64_t block_length = 1;  // elements of one before the next
  // The datasets of the cycle are read ahead on the I/O pool; the order stays.
  bool parallel = false;
};

struct WindowOptions {
  int64_t size = 1;
  int64_t shift = 0;            // from the begin of one window to that of the next; 0: size
  int64_t stride = 1;           // from one element of a window to the next
  bool drop_remainder = false;  // windows with fewer elements, at the end
};

struct FileOptions {
  Compression compression = Compression::kNone;
  int64_t buffer_size = 0;  // bytes read at a time; 0: 256 KiB
};

struct CsvRecordsOptions {
  char field_delim = ',';
  bool use_quote_delim = true;
  // The first record of each file names its columns and is no element.
  bool has_header = false;
  // What it must name, in this order; "": anything. Empty: it is not looked at.
  std::vector<std::string> columns = {};
  bool more_columns = false;  // others may follow them
  FileOptions file = {};
};

struct FixedLengthOptions {
  int64_t header_bytes = 0, footer_bytes = 0;
  FileOptions file = {};
};

struct ListFilesOptions {
  bool shuffle = true;  // otherwise sorted
  ShuffleOptions seeds = {};
};

// How many errors IgnoreErrors drops before it ends the data with an error.
struct IgnoreErrorsOptions {
  int64_t max_errors = kForever;  // kForever: any number
  double max_share = 0.01;        // of the elements so far; 1: all of them
  int64_t share_from = 1000;      // the share counts from this element on
  // Files that may be left out, from their first error on: one that is not there, a header of other
  // columns, a stream that was cut. kForever: any number. Counted by pass, as errors are; the state
  // keeps the count.
  int64_t max_files = 0;
  // Called with each error that is dropped, in the thread that reads.
  std::function<void(const Status&)> on_error = nullptr;
};

class Dataset;
using DatasetFunction = ElementFunction<StatusOr<Dataset>(const Element&)>;
// (state, element) -> (state, output)
using ScanFunction = ElementFunction<StatusOr<std::pair<Element, Element>>(Element, Element)>;

struct GroupByWindowFunctions {
  ElementFunction<StatusOr<int64_t>(const Element&)> key;
  // Of a key's windows; asked once for each window, >= 1.
  ElementFunction<StatusOr<int64_t>(int64_t key)> window_size;
  ElementFunction<StatusOr<Dataset>(int64_t key, Dataset window)> window;
};

class Dataset {
 public:
  // None: status() is FailedPrecondition.
  Dataset();

  // --- Sources
  static Dataset FromTensors(Element element);
  // Row i of every tensor is element i.
  static Dataset FromTensorSlices(Element tensors);
  // int64 scalars start, start + step, ... before stop.
  static Dataset Range(int64_t start, int64_t stop, int64_t step = 1);
  static Dataset Range(int64_t stop) { return Range(0, stop); }
  // Elements that are not as `spec` says are errors. The state of an iterator over it is how many
  // elements it has given; restoring runs the generator again to that place.
  static Dataset FromGenerator(GeneratorFactory factory, ElementSpec spec);
  // Element i has the components of element i of each; as long as the shortest.
  static Dataset Zip(std::vector<Dataset> datasets);
  // Files, one after the other; an error ends its file only.
  // Lines without "\n" or "\r\n", as string scalars; the last needs none. A UTF-8 byte order mark
  // at the front of a file is no part of its first line.
  static Dataset TextLines(std::vector<std::string> paths, FileOptions options = {});
  // The records of CSV files as string scalars: lines that go on inside quotes
  // (formats/text_rows.h). A header that does not match ends its file with an error. Mostly not
  // called: CsvDataset (data/csv.h) decodes them, too.
  static Dataset CsvRecords(std::vector<std::string> paths, CsvRecordsOptions options = {});
  // TFRecord files; core/record.h has what is an end and what an error.
  static Dataset Records(std::vector<std::string> paths, FileOptions options = {});
  static Dataset FixedLengthRecords(std::vector<std::string> paths, int64_t record_bytes,
                                    FixedLengthOptions options = {});
  // The paths that match (data/matching_files.h), listed when an iterator begins. None is an error.
  static Dataset ListFiles(std::vector<std::string> patterns, ListFilesOptions options = {});
  // A description of another kind (an op, a library of the user's).
  static Dataset FromNode(std::shared_ptr<const DatasetNode> node);
  // One that is none, for `error`.
  static Dataset Error(Status error);

  // --- Element by element
  Dataset Map(MapFunction function, MapOptions options = {}) const;
  // Rows are handed to the function in blocks where possible; it splits them itself.
  Dataset Map(StatusOr<std::shared_ptr<const RowFunction>> function) const;
  Dataset Filter(Predicate predicate) const;
  // A scalar int64 that counts from `start`, then the components.
  Dataset Enumerate(int64_t start = 0) const;

  // (state, output) = function(state, element): gives the outputs.
  Dataset Scan(Element initial_state, ScanFunction function, ElementSpec spec = {}) const;

  // --- Datasets of elements. Their spec must be that of the others; none: not known.
  Dataset FlatMap(DatasetFunction function, ElementSpec spec = {}) const;
  // Reads the datasets of `cycle_length` elements in turns, in TensorFlow's order.
  Dataset Interleave(DatasetFunction function, InterleaveOptions options = {},
                     ElementSpec spec = {}) const;
  // The datasets that `function` makes of windows: of the elements [0, size), [shift, shift +
  // size), ... A window is in memory.
  Dataset Window(WindowOptions options, std::function<StatusOr<Dataset>(Dataset)> function,
                 ElementSpec spec = {}) const;
  // Elements are gathered by key; a key's `window_size` elements go to `window`, and what is left
  // at the end, by ascending key.
  Dataset GroupByWindow(GroupByWindowFunctions functions, ElementSpec spec = {}) const;
  Dataset GroupByWindow(std::function<StatusOr<int64_t>(const Element&)> key,
                        std::function<StatusOr<Dataset>(int64_t key, Dataset window)> function,
                        int64_t window_size, ElementSpec spec = {}) const;

  // --- Which elements
  Dataset Take(int64_t count) const;  // kForever: all
  Dataset Skip(int64_t count) const;  // kForever: all
  Dataset Shard(int64_t num_shards, int64_t index) const;
  Dataset Repeat(int64_t count = kForever) const;
  Dataset Concatenate(const Dataset& next) const;
  // Without the errors; cancellation is none of them. What is dropped is counted, by pass: the log
  // has the first error at once and the total at the end, IteratorTimes::dropped the number; the
  // state keeps both. Above the limits of `options` the next error, or element, is an
  // InvalidArgument with the first error and the numbers, and the dataset ends.
  Dataset IgnoreErrors(IgnoreErrorsOptions options = {}) const;
  // The same; an end without any element, or error, before it is an InvalidArgument that names the
  // sources.
  Dataset RequireElements() const;

  // --- Order
  // A uniformly chosen element of the next `buffer_size` ones, again and again; the buffer is
  // filled first. Of equal seeds comes TensorFlow's order.
  Dataset Shuffle(int64_t buffer_size, ShuffleOptions options = {}) const;
  // Epochs follow each other without the buffer running empty; an epoch's elements all come before
  // those of the next. (Shuffle after Repeat mixes epochs; Repeat after Shuffle begins each with an
  // empty buffer.)
  Dataset ShuffleAndRepeat(int64_t buffer_size, int64_t count = kForever,
                           ShuffleOptions options = {}) const;

  // --- When
  // Up to `buffer_size` elements are made ahead, on the I/O pool. 0: none; kAutotune: 2 to 64, as
  // many as have about 256 KiB.
  Dataset Prefetch(int64_t buffer_size) const;
  // The first pass of an iterator keeps what it gives in memory, the others (of Repeat) give it
  // again. A pass that is not the whole is not kept. An error is not kept.
  Dataset Cache() const;
  // The same in a file: the first pass that comes to the end writes it, all later ones, also of
  // other iterators and processes, read it and not the input. FailedPrecondition when the file is
  // of other elements.
  Dataset Cache(std::string path) const;

  // --- Batches
  // The components of `batch_size` elements, stacked; they must have equal shapes.
  Dataset Batch(int64_t batch_size, BatchOptions options = {}) const;
  // Map, then Batch.
  Dataset MapAndBatch(MapFunction function, int64_t batch_size, MapOptions map = {},
                      BatchOptions options = {}) const;
  // The same of components of different sizes, each padded at the end of its dimensions.
  Dataset PaddedBatch(int64_t batch_size, PaddedBatchOptions options = {}) const;
  // The rows of each element, one by one.
  Dataset Unbatch() const;

  // --- What it is
  const Status& status() const { return status_; }
  // Empty: not known. Requires status().ok(), like the following.
  const ElementSpec& spec() const;
  int64_t cardinality() const;
  // "Range(0, 10, 1).Batch(4)": what is done in which order; tensors, functions and contents of
  // files are not told.
  std::string DebugString() const;
  const std::shared_ptr<const DatasetNode>& node() const { return node_; }

  StatusOr<std::unique_ptr<Iterator>> MakeIterator(const IteratorOptions& options = {}) const;
  // The last of state = function(state, element). InvalidArgument for an infinite dataset.
  StatusOr<Element> Reduce(Element initial,
                           const std::function<StatusOr<Element>(Element, Element)>& function,
                           const IteratorOptions& options = {}) const;

 private:
  std::shared_ptr<const DatasetNode> node_;  // null unless status_ is OK
  Status status_;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_DATASET_H_
