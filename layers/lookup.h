// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_LOOKUP_H_
#define MILLRACE_LAYERS_LOOKUP_H_

// Look-up tables: values by key, from lists in the program or files.
//
//   IndexTable colours = IndexTableFromFile(scope, "colours.txt", {.num_oov_buckets = 2});
//   Output ids = Lookup(scope, colours, words);      // "red" -> 0, ...; others -> 2 more ids
//   LookupTable names = IndexToStringTableFromFile(scope, "colours.txt");
//   Output words = Lookup(scope, names, ids);
//
// A table has an initialiser, which is entered into the collection "table_initializer": local
// initialisation and a SavedModel's main op run it (train/session_manager.h, estimator/), a program
// that has a session of its own runs TablesInitializer. A table that was not initialised says so,
// by its name. The name of a file is a constant of the graph, in the collection "asset_filepaths":
// an export takes the file along, and who loads it reads that copy.
//
// Tables whose content is fixed are each task's own, wherever variables go; MutableTable is kept
// where variables are, and saved with them.
//
// Names of nodes are TensorFlow 1.15's: `<name>` (HashTableV2), `<name>/table_init/...`,
// `<name>_Lookup/LookupTableFindV2`. Errors go into the scope, with the source line.

#include <cstdint>
#include <optional>
#include <string>

#include "core/dtype.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "ops/lookup/table_initializer.h"
#include "ops/sparse/sparse_tensor.h"

namespace millrace {

struct LookupTable {
  Output handle;          // DT_RESOURCE; its node has the table's name
  Operation initializer;  // invalid for a MutableTable
  Output default_value;   // of keys that are not there
  DType key_dtype = DT_INVALID, value_dtype = DT_INVALID;
  std::optional<int64_t> size = {};  // entries, where the program says how many
  bool valid() const { return handle.valid(); }
};

struct TableAttrs {
  std::string container = "";
  // Nodes of one shared_name and device have one table. Empty: for a table from a file a name made
  // of the file's, its columns and its size, as in TensorFlow; the node's own name otherwise.
  std::string shared_name = "";
};

// --- Keys and values -----------------------------------------------------------------------------

// `keys` and `values`: vectors of one length; `default_value`: a scalar of the values' type. The
// scope's WithName gives the name ("hash_table" otherwise). InvalidArgument for keys that are not
// int32, int64 or string, and for one that is there twice with different values.
LookupTable StaticTable(ScopeAt at, const Tensor& keys, const Tensor& values,
                        const Tensor& default_value, const TableAttrs& attrs = {});

// A text file, one entry a line. A column is one of the line's, from 0 on, kWholeLine or
// kLineNumber.
struct TableFile {
  std::string path;
  DType key_dtype = DT_STRING;
  int64_t key_column = kWholeLine;
  DType value_dtype = DT_INT64;
  int64_t value_column = kLineNumber;
  int64_t vocab_size = -1;       // entries; -1: as many as there are lines
  std::string delimiter = "\t";  // between columns
};
LookupTable StaticTable(ScopeAt at, const TableFile& file, const Tensor& default_value,
                        const TableAttrs& attrs = {});

// The values of `keys` (any shape), in the shape of `keys` and then, for tables of vectors, of a
// value. int32 keys may be asked of a table of int64.
Output Lookup(ScopeAt at, const LookupTable& table, Output keys);

// --- Vocabularies --------------------------------------------------------------------------------

// Ids of words: [0, size) for those of the vocabulary, [size, size + num_oov_buckets) for others.
struct IndexTable {
  LookupTable table;
  int64_t num_oov_buckets = 0;
  bool valid() const { return table.valid(); }
};

struct IndexTableAttrs {
  // Words that are not in the vocabulary: Fingerprint64(word) mod num_oov_buckets + size; without
  // such buckets `default_value`. Numbers count as their decimal text.
  int64_t num_oov_buckets = 0;
  int64_t default_value = -1;
  std::string container = "", shared_name = "";  // as TableAttrs
};
// `vocabulary`: a vector of different strings or integers; the place of each is its id. The scope's
// WithName gives the name ("string_to_index" otherwise). InvalidArgument for a word that is there
// twice, an empty vocabulary and a negative number of buckets.
IndexTable IndexTableFromTensor(ScopeAt at, const Tensor& vocabulary,
                                const IndexTableAttrs& attrs = {});
struct VocabularyFile {
  int64_t vocab_size = -1;  // as TableFile
  int64_t num_oov_buckets = 0;
  int64_t default_value = -1;
  DType key_dtype = DT_STRING;  // or integers
  int64_t key_column = kWholeLine;
  int64_t value_column = kLineNumber;
  std::string delimiter = "\t";
  std::string container = "", shared_name = "";
};
IndexTable IndexTableFromFile(ScopeAt at, const std::string& path,
                              const VocabularyFile& attrs = {});
// int64, shaped as `keys`.
Output Lookup(ScopeAt at, const IndexTable& table, Output keys);
// The values of keys that only some elements have, at their places.
SparseTensor Lookup(ScopeAt at, const LookupTable& table, const SparseTensor& keys);
SparseTensor Lookup(ScopeAt at, const IndexTable& table, const SparseTensor& keys);
// All ids, those of the buckets included: an int64 scalar, read from the table unless the program
// says how many there are.
Output TableSize(ScopeAt at, const IndexTable& table);

// Words of ids (int64).
LookupTable IndexToStringTableFromTensor(ScopeAt at, const Tensor& vocabulary,
                                         const std::string& default_value = "UNK",
                                         const TableAttrs& attrs = {});
struct WordFile {
  int64_t vocab_size = -1;
  std::string default_value = "UNK";
  int64_t key_column = kLineNumber;
  int64_t value_column = kWholeLine;
  std::string delimiter = "\t";
  std::string container = "", shared_name = "";
};
LookupTable IndexToStringTableFromFile(ScopeAt at, const std::string& path,
                                       const WordFile& attrs = {});

// --- Tables that change --------------------------------------------------------------------------

struct MutableTableAttrs {
  std::string container = "", shared_name = "";
  // Saved and restored with the variables by a Saver of the graph: `<name>-keys`, `<name>-values`.
  bool checkpoint = true;
};
// Empty at first. `default_value`: a scalar, or the vector that all values are shaped as. Filled
// and changed by the ops of ops/lookup/lookup_table.h.
LookupTable MutableTable(ScopeAt at, DType key_dtype, const Tensor& default_value,
                         const MutableTableAttrs& attrs = {});

// --- Initialisation ------------------------------------------------------------------------------

// One operation that initialises all tables of the graph.
Operation TablesInitializer(ScopeAt at);

}  // namespace millrace

#endif  // MILLRACE_LAYERS_LOOKUP_H_
