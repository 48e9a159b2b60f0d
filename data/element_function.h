// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_ELEMENT_FUNCTION_H_
#define MILLRACE_DATA_ELEMENT_FUNCTION_H_

// ElementFunction: a function that a dataset calls, of elements alone or also of the iterator's
// cancellation:
//
//   dataset.Map([](Element e) -> StatusOr<Element> { ... });
//   dataset.Map([](CancellationManager* cancellation, Element e) -> StatusOr<Element> { ... });
//
// One that may run for long takes the second form: it returns, with an error, soon after
// `cancellation` is cancelled. That is never null and outlives the call.
//
// Thread-safety: a value; called from any thread, several at once.

#include <cstddef>
#include <functional>
#include <type_traits>
#include <utility>

namespace millrace {
class CancellationManager;
}

namespace millrace::data {

template <typename Signature>
class ElementFunction;

template <typename R, typename... Args>
class ElementFunction<R(Args...)> {
 public:
  ElementFunction() = default;
  ElementFunction(std::nullptr_t) {}  // none
  template <typename F>
    requires std::is_invocable_r_v<R, F&, Args...>
  ElementFunction(F function) {
    std::function<R(Args...)> plain(std::move(function));
    if (plain == nullptr) return;
    call_ = [plain = std::move(plain)](CancellationManager*, Args... args) -> R {
      return plain(std::forward<Args>(args)...);
    };
  }
  template <typename F>
    requires(std::is_invocable_r_v<R, F&, CancellationManager*, Args...> &&
             !std::is_invocable_r_v<R, F&, Args...> &&
             !std::is_same_v<std::remove_cvref_t<F>, ElementFunction>)
  ElementFunction(F function) : call_(std::move(function)) {}

  explicit operator bool() const { return static_cast<bool>(call_); }
  bool operator==(std::nullptr_t) const { return !call_; }

  R operator()(CancellationManager* cancellation, Args... args) const {
    return call_(cancellation, std::forward<Args>(args)...);
  }

 private:
  std::function<R(CancellationManager*, Args...)> call_;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_ELEMENT_FUNCTION_H_
