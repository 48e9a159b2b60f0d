// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_API_C_API_INTERNAL_H_
#define MILLRACE_API_C_API_INTERNAL_H_

// What the sources of the C API share: what is behind its handles, and the border that every
// function crosses with Call or CallFor.
//
//   MillraceTensor* millrace_tensor_share(const MillraceTensor* tensor, MillraceStatus* status) {
//     return CallFor<MillraceTensor*>(status, __func__, nullptr, [&](absl::string_view where) {
//       ...
//     });
//   }
//
// Messages of this layer begin with the function's name; those from below are left as they are.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/base/optimization.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "api/c_api.h"
#include "api/c_api_handle.h"
#include "core/dtype.h"
#include "core/exceptions.h"
#include "core/mutex.h"
#include "core/new_message.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "runtime/session.h"
#include "saver/saver.h"

namespace millrace::c_api {

// --- Objects of a status, of bytes, of texts -----------------------------------------------------

struct StatusObject {
  using Opaque = MillraceStatus;
  static constexpr uint32_t kKind = 0x4d520001;
  static constexpr char kName[] = "MillraceStatus";

  // Keeps the code where there is no memory for the message.
  void Set(const Status& status) noexcept;

  MillraceCode code = MILLRACE_OK;
  std::string message;
};

struct BufferObject {
  using Opaque = MillraceBuffer;
  static constexpr uint32_t kKind = 0x4d520002;
  static constexpr char kName[] = "MillraceBuffer";
  std::string bytes;
};

struct StringsObject {
  using Opaque = MillraceStrings;
  static constexpr uint32_t kKind = 0x4d520003;
  static constexpr char kName[] = "MillraceStrings";
  std::vector<std::string> strings;
};

struct TensorObject {
  using Opaque = MillraceTensor;
  static constexpr uint32_t kKind = 0x4d520004;
  static constexpr char kName[] = "MillraceTensor";
  Tensor tensor;
};

// --- The border ----------------------------------------------------------------------------------

// Null for NULL; says so on stderr, and is null, for what is no status.
StatusObject* StatusFor(MillraceStatus* status, absl::string_view where) noexcept;
MillraceCode Told(StatusObject* told, const Status& status) noexcept;

// body(where) -> Status, unless `status` holds an error.
template <typename Body>
MillraceCode Call(MillraceStatus* status, absl::string_view where, Body&& body) noexcept {
  StatusObject* const told = status == nullptr ? nullptr : StatusFor(status, where);
  if (told != nullptr && told->code != MILLRACE_OK) return told->code;
  const Status result = NoExceptions(where, [&]() -> Status { return body(where); });
  return ABSL_PREDICT_TRUE(result.ok()) ? MILLRACE_OK : Told(told, result);
}

// body(where) -> StatusOr<Result>, and what it gives; `on_error` otherwise.
template <typename Result, typename Body>
Result CallFor(MillraceStatus* status, absl::string_view where, Result on_error,
               Body&& body) noexcept {
  StatusObject* const told = status == nullptr ? nullptr : StatusFor(status, where);
  if (told != nullptr && told->code != MILLRACE_OK) return on_error;
  const StatusOr<Result> result =
      NoExceptions(where, [&]() -> StatusOr<Result> { return body(where); });
  if (ABSL_PREDICT_TRUE(result.ok())) return *result;
  Told(told, result.status());
  return on_error;
}

// Deletes a handle; says so on stderr when it is none.
template <typename Object>
void DeleteHandle(typename Object::Opaque* handle, absl::string_view where) noexcept;
void SayNoHandle(absl::string_view where, absl::string_view kind) noexcept;
template <typename Object>
void DeleteHandle(typename Object::Opaque* handle, absl::string_view where) noexcept {
  if (handle == nullptr || Handles<Object>::Delete(handle)) return;
  SayNoHandle(where, Object::kName);
}

// --- Arguments -----------------------------------------------------------------------------------

Status CheckText(const char* text, absl::string_view where, absl::string_view what);
// "" for NULL.
inline std::string TextOrNone(const char* text) { return text == nullptr ? "" : text; }
// `count` >= 0, and not NULL unless it is 0.
Status BadArray(int count, absl::string_view where, absl::string_view what);
inline Status CheckArray(const void* array, int count, absl::string_view where,
                         absl::string_view what) {
  if (ABSL_PREDICT_TRUE(count == 0 || (count > 0 && array != nullptr))) return absl::OkStatus();
  return BadArray(count, where, what);
}
StatusOr<std::vector<std::string>> TextsOf(const char* const* texts, int count,
                                           absl::string_view where, absl::string_view what);
// The same with sizes; `sizes` may be null.
StatusOr<std::vector<std::string>> StringsOf(const char* const* texts, const size_t* sizes,
                                             int count, absl::string_view where,
                                             absl::string_view what);
StatusOr<absl::string_view> BytesOf(const void* data, size_t size, absl::string_view where,
                                    absl::string_view what);
// A serialized message, `kind` its name. DataLoss for other bytes.
template <typename Message>
StatusOr<std::shared_ptr<Message>> ParseMessage(const void* bytes, size_t size,
                                                absl::string_view where, absl::string_view kind) {
  MR_ASSIGN_OR_RETURN(const absl::string_view text, BytesOf(bytes, size, where, "the message"));
  auto message = NewMessage<Message>();
  if (!message->ParseFromArray(text.data(), static_cast<int>(text.size()))) {
    return absl::DataLossError(absl::StrCat(where, ": the bytes must be a serialized ", kind,
                                            ", got ", size, " bytes that are none"));
  }
  return message;
}

// Not a reference, not DT_INVALID.
StatusOr<DType> DTypeOfNumber(MillraceDType dtype, absl::string_view where);
StatusOr<Shape> ShapeOf(const int64_t* dims, int num_dims, absl::string_view where);
// num_dims -1: unknown rank.
StatusOr<PartialShape> PartialShapeOf(const int64_t* dims, int num_dims, absl::string_view where);
// The rank, -1 if unknown; as many dimensions as there is room for.
StatusOr<int> WriteShape(const PartialShape& shape, int64_t* dims, int max_dims,
                         absl::string_view where);

Status BadOptions(absl::string_view where, absl::string_view what, size_t wanted, size_t got);
// A struct of options as this library knows it: what the caller's lacks is zero.
template <typename Options>
Status ReadOptions(const Options* given, absl::string_view where, absl::string_view what,
                   Options* options) {
  std::memset(static_cast<void*>(options), 0, sizeof(Options));
  if (given == nullptr) return absl::OkStatus();
  const size_t size = given->struct_size;
  const char* const bytes = reinterpret_cast<const char*>(given);
  // The bound keeps a size that was never set from being walked.
  constexpr size_t kMaxSize = 4096;
  if (size < sizeof(size_t) || size > kMaxSize) {
    return BadOptions(where, what, sizeof(Options), size);
  }
  for (size_t i = sizeof(Options); i < size; ++i) {
    if (bytes[i] == 0) continue;
    return Unimplemented(where, ": ", what, " must set only fields that this library has (",
                         sizeof(Options), " bytes), got a value at byte ", i,
                         "; the program was built for a later one");
  }
  std::memcpy(static_cast<void*>(options), bytes, std::min(size, sizeof(Options)));
  return absl::OkStatus();
}

// Handles for each of `tensors`, or for none of them.
Status GiveTensors(absl::Span<Tensor> tensors, MillraceTensor** results);
// The tensors of handles during a call: one is the handle's own, several are copies.
class TensorsOfHandles {
 public:
  TensorsOfHandles() = default;
  TensorsOfHandles(const TensorsOfHandles&) = delete;
  TensorsOfHandles& operator=(const TensorsOfHandles&) = delete;

  // Once; `what` is the array's name.
  Status Take(MillraceTensor* const* handles, int count, absl::string_view where,
              absl::string_view what);
  // As long as this object and the handles.
  absl::Span<const Tensor> get() const { return tensors_; }

 private:
  absl::Span<const Tensor> tensors_;
  absl::InlinedVector<Tensor, 4> copies_;
};

// --- Graphs --------------------------------------------------------------------------------------

// A graph that many threads build, and whose edits happen whole or not at all.
//
// A Scope keeps its first error, and a composite builder that fails has made some of its nodes. So
// after an edit that fails the graph is made again of the nodes that were there before, with a
// Scope of its own, which is told the shapes that were known. Sessions see that by the generation.
//
// Thread-safety: all methods, from any thread. `version` moves with every edit.
class GraphState {
 public:
  GraphState() = default;

  // Calls `edit` with the scope, and takes back what it did when it or the scope tells an error.
  Status Edit(absl::FunctionRef<Status(const Scope&)> edit);
  // Calls `read` with the scope, which it may use but not add to.
  Status Read(absl::FunctionRef<Status(const Scope&)> read);
  // Instead of the graph: what `make` makes of it, with all of its nodes and what is known of them.
  Status Replace(absl::FunctionRef<StatusOr<Scope>(const Scope&)> make);
  // The text, as long as this object.
  const char* Keep(absl::string_view text);

  int64_t version() const { return version_.load(std::memory_order_acquire); }

  // What a session has taken up of the graph.
  struct Position {
    std::atomic<int64_t> version{-1};  // release by CatchUp, acquire by who compares
    int64_t generation = -1;
    int num_ids = 0;
  };
  // Shows the session what it lacks. One thread at a time by the lock of this object.
  Status CatchUp(Session* session, Position* position);
  // The same, and Read: the session has just what `read` sees.
  Status Read(Session* session, Position* position, absl::FunctionRef<Status(const Scope&)> read);

 private:
  Status Show(Session* session, Position* position) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status RollBack(int num_ids, const std::map<std::string, int>& collection_sizes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  Scope scope_ ABSL_GUARDED_BY(mu_);
  int64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  Status broken_ ABSL_GUARDED_BY(mu_);  // no memory to take an edit back
  std::atomic<int64_t> version_{0};     // release by edits, acquire by who compares

  Mutex names_mu_;
  std::set<std::string, std::less<>> names_ ABSL_GUARDED_BY(names_mu_);
};

struct GraphObject {
  using Opaque = MillraceGraph;
  static constexpr uint32_t kKind = 0x4d520005;
  static constexpr char kName[] = "MillraceGraph";
  std::shared_ptr<GraphState> state;
};

// The name of a node, for its caller; null for an invalid one.
const char* NameFor(GraphState* graph, const Operation& op);
// An edit whose result is the name of the node that it gives.
const char* EditForName(MillraceGraph* graph, MillraceStatus* status, absl::string_view where,
                        absl::FunctionRef<StatusOr<Operation>(const Scope&)> edit);
// A question about the graph.
template <typename Result>
Result Ask(const MillraceGraph* graph, MillraceStatus* status, absl::string_view where,
           Result on_error, absl::FunctionRef<StatusOr<Result>(GraphState*, const Scope&)> answer) {
  return CallFor<Result>(status, where, on_error, [&](absl::string_view) -> StatusOr<Result> {
    MR_ASSIGN_OR_RETURN(const GraphObject* object,
                        Handles<GraphObject>::Get(graph, where, "graph"));
    const std::shared_ptr<GraphState> state = object->state;
    Result result = on_error;
    MR_RETURN_IF_ERROR(state->Read([&](const Scope& scope) -> Status {
      MR_ASSIGN_OR_RETURN(result, answer(state.get(), scope));
      return absl::OkStatus();
    }));
    return result;
  });
}

inline Scope Named(const Scope& scope, const char* name) {
  return name == nullptr || *name == 0 ? scope : scope.WithName(name);
}

// A node, or an output of one, by its name. NotFound with the nearest name.
StatusOr<Operation> FindNode(const Scope& scope, const std::string& name, absl::string_view where);
StatusOr<Output> FindTensor(const Scope& scope, const std::string& name, absl::string_view where);
// Of the collections of variables.
StatusOr<Variable> FindVariable(const Scope& scope, const std::string& name,
                                absl::string_view where);
StatusOr<std::vector<Variable>> FindVariables(const Scope& scope,
                                              absl::Span<const std::string> names,
                                              absl::string_view where);

// --- Sessions ------------------------------------------------------------------------------------

struct SessionState {
  std::shared_ptr<Session> session;   // a loaded model's keeps the model
  std::shared_ptr<GraphState> graph;  // null for a loaded model
  GraphState::Position position;

  Status CatchUp() {
    if (graph == nullptr || graph->version() == position.version.load(std::memory_order_acquire)) {
      return absl::OkStatus();
    }
    return graph->CatchUp(session.get(), &position);
  }
};

struct SessionObject {
  using Opaque = MillraceSession;
  static constexpr uint32_t kKind = 0x4d520006;
  static constexpr char kName[] = "MillraceSession";
  std::shared_ptr<SessionState> state;
};

StatusOr<SessionOptions> SessionOptionsOf(const MillraceSessionOptions* options,
                                          absl::string_view where);

// One step, its results as handles in `results`; `feeds` are names and values.
Status RunStep(SessionState* session, absl::Span<const Feed> feeds,
               absl::Span<const FetchName> fetches, absl::Span<const FetchName> targets,
               const MillraceRunOptions* options, absl::string_view where,
               MillraceTensor** results);

// --- Savers --------------------------------------------------------------------------------------

struct SaverState {
  GraphState* graph;  // the owner of the saver keeps it
  Mutex mu;
  std::unique_ptr<Saver> saver ABSL_GUARDED_BY(mu);
  std::set<std::string> paths ABSL_GUARDED_BY(mu);  // that were given out
};

struct SaverObject {
  using Opaque = MillraceSaver;
  static constexpr uint32_t kKind = 0x4d520007;
  static constexpr char kName[] = "MillraceSaver";
  std::shared_ptr<GraphState> graph;
  std::shared_ptr<SaverState> state;
};

}  // namespace millrace::c_api

#endif  // MILLRACE_API_C_API_INTERNAL_H_
