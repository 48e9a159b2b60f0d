// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_CALL_WITH_H_
#define MILLRACE_ESTIMATOR_CALL_WITH_H_

// TakenArguments: which of several arguments a function takes, so that users write down only those
// that they need, in the order that is given.
//
//   constexpr unsigned kTaken = TakenArguments<F, 1, const Scope&, Mode>;   // the first one always
//   CallWith<kTaken>(f, std::forward_as_tuple(scope, mode));
//
// Bit i: argument i is taken. Where a function could be called in several ways (a generic lambda)
// it gets as many arguments as it takes, the earlier ones first. kNoArguments: it cannot be called.

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace millrace::estimator_internal {

inline constexpr unsigned kNoArguments = ~0u;

template <unsigned kMask, size_t kIndex, typename Tuple>
auto PickOne(const Tuple& arguments) {
  if constexpr ((kMask >> kIndex & 1u) != 0) {
    return std::tuple<std::tuple_element_t<kIndex, Tuple>>(std::get<kIndex>(arguments));
  } else {
    return std::tuple<>();
  }
}

template <unsigned kMask, typename Tuple, size_t... kIndex>
auto Pick(const Tuple& arguments, std::index_sequence<kIndex...>) {
  return std::tuple_cat(PickOne<kMask, kIndex>(arguments)...);
}

template <typename F, typename Tuple>
struct IsCallableWith : std::false_type {};
template <typename F, typename... Arguments>
struct IsCallableWith<F, std::tuple<Arguments...>> : std::is_invocable<F&, Arguments...> {};

template <typename F, unsigned kMask, typename... Arguments>
inline constexpr bool kTakes =
    IsCallableWith<F, decltype(Pick<kMask>(std::declval<std::tuple<Arguments...>>(),
                                           std::index_sequence_for<Arguments...>()))>::value;

constexpr unsigned CountBits(unsigned mask) {
  unsigned bits = 0;
  for (; mask != 0; mask &= mask - 1) ++bits;
  return bits;
}

// More arguments first; of as many, the mask with the lower bits.
constexpr bool IsBetter(unsigned a, unsigned b) {
  if (b == kNoArguments) return true;
  if (CountBits(a) != CountBits(b)) return CountBits(a) > CountBits(b);
  return a < b;
}

template <typename F, unsigned kRequired, typename... Arguments, unsigned... kMasks>
constexpr unsigned BestMask(std::integer_sequence<unsigned, kMasks...>) {
  unsigned best = kNoArguments;
  const auto consider = [&best](unsigned mask, bool takes) {
    if (takes && IsBetter(mask, best)) best = mask;
  };
  (consider(kMasks, (kMasks & kRequired) == kRequired && kTakes<F, kMasks, Arguments...>), ...);
  return best;
}

template <typename F, unsigned kRequired, typename... Arguments>
inline constexpr unsigned TakenArguments = BestMask<F, kRequired, Arguments...>(
    std::make_integer_sequence<unsigned, (1u << sizeof...(Arguments))>());

template <unsigned kMask, typename F, typename... Arguments>
decltype(auto) CallWith(F& f, const std::tuple<Arguments...>& arguments) {
  return std::apply(f, Pick<kMask>(arguments, std::index_sequence_for<Arguments...>()));
}

}  // namespace millrace::estimator_internal

#endif  // MILLRACE_ESTIMATOR_CALL_WITH_H_
