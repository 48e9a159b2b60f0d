// SPDX-License-Identifier: Apache-2.0
#include "distributed/cluster/host_list.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

constexpr size_t kMaxDigits = 9;  // below 2^31
constexpr size_t kMaxName = 255;  // of the domain name system
constexpr size_t kMaxShown = 40;

bool IsDigit(char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }

// Reads a text from its begin to its end; knows where it is.
class Cursor {
 public:
  Cursor(absl::string_view text, absl::string_view where) : text_(text), where_(where) {}

  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  void Skip() { ++at_; }
  bool Take(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  absl::string_view Digits() {
    const size_t begin = at_;
    while (!at_end() && IsDigit(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  // What is wrong with what comes next.
  Status Wrong(absl::string_view rule) const {
    return WrongGot(rule, at_end()
                              ? std::string("its end")
                              : absl::StrCat("'", absl::CHexEscape(text_.substr(at_, 1)), "'"));
  }
  // What is wrong with what was read last.
  Status WrongGot(absl::string_view rule, absl::string_view got) const {
    const size_t begin = at_ - std::min(at_, kMaxShown);
    return InvalidArgument(where_, ": ", rule, ", got ", got, " at byte ", at_ + 1, ", after '",
                           begin > 0 ? "..." : "",
                           absl::CHexEscape(text_.substr(begin, at_ - begin)), "'");
  }

 private:
  const absl::string_view text_, where_;
  size_t at_ = 0;
};

// A number of digits, which must come next.
StatusOr<int> TakeNumber(Cursor* cursor, absl::string_view what, size_t* width = nullptr) {
  const Cursor before = *cursor;
  const absl::string_view digits = cursor->Digits();
  if (digits.empty()) return cursor->Wrong(absl::StrCat(what, " must be a number"));
  int number = 0;
  if (digits.size() > kMaxDigits || !absl::SimpleAtoi(digits, &number)) {
    return before.WrongGot(absl::StrCat(what, " must have at most ", kMaxDigits, " digits"),
                           absl::StrCat("'", digits.substr(0, kMaxShown), "'"));
  }
  if (width != nullptr) *width = digits.size();
  return number;
}

// What is between brackets: "001-003,7".
StatusOr<std::vector<std::string>> TakeRanges(Cursor* cursor) {
  std::vector<std::string> numbers;
  do {
    const Cursor before = *cursor;
    size_t width = 0;
    MR_ASSIGN_OR_RETURN(const int first, TakeNumber(cursor, "a range's begin", &width));
    int last = first;
    if (cursor->Take('-')) {
      MR_ASSIGN_OR_RETURN(last, TakeNumber(cursor, "a range's end"));
    }
    if (last < first) {
      return before.WrongGot("a range must not go down", absl::StrCat(first, "-", last));
    }
    if (static_cast<size_t>(last - first) >= kMaxHosts - numbers.size()) {
      return before.WrongGot(absl::StrCat("there must be at most ", kMaxHosts, " hosts"),
                             absl::StrCat(first, "-", last));
    }
    for (int number = first; number <= last; ++number) {
      std::string text = absl::StrCat(number);
      if (text.size() < width) text.insert(0, width - text.size(), '0');
      numbers.push_back(std::move(text));
    }
  } while (cursor->Take(','));
  if (cursor->peek() == '[') return cursor->Wrong("'[' must not be in another one");
  if (!cursor->Take(']')) return cursor->Wrong("'[' must be followed by ranges and ']'");
  return numbers;
}

// One part of the list, up to a comma: a name in which brackets stand for several.
StatusOr<std::vector<std::string>> TakeHosts(Cursor* cursor) {
  std::vector<std::string> names = {""};
  const Cursor begin = *cursor;
  while (!cursor->at_end() && cursor->peek() != ',') {
    if (cursor->Take('[')) {
      MR_ASSIGN_OR_RETURN(const std::vector<std::string> numbers, TakeRanges(cursor));
      if (names.size() * numbers.size() > kMaxHosts) {
        return begin.WrongGot(absl::StrCat("there must be at most ", kMaxHosts, " hosts"),
                              absl::StrCat(names.size(), " * ", numbers.size()));
      }
      std::vector<std::string> longer;
      for (const std::string& name : names) {
        for (const std::string& number : numbers) longer.push_back(name + number);
      }
      names = std::move(longer);
    } else {
      const char c = cursor->peek();
      if (c == ']') return cursor->Wrong("']' must follow a '['");
      if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.' && c != '_') {
        return cursor->Wrong("a host's name must have letters, digits, '-', '.' and '_'");
      }
      for (std::string& name : names) name.push_back(c);
      cursor->Skip();
    }
    if (names[0].size() > kMaxName) {
      return begin.WrongGot(absl::StrCat("a host's name must have at most ", kMaxName, " bytes"),
                            "a longer one");
    }
  }
  if (names[0].empty()) return cursor->Wrong("a host's name must not be empty");
  return names;
}

}  // namespace

StatusOr<std::vector<std::string>> ExpandHostList(absl::string_view text, absl::string_view where) {
  std::vector<std::string> hosts;
  std::set<std::string> seen;
  Cursor cursor(text, where);
  do {
    const Cursor begin = cursor;
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, TakeHosts(&cursor));
    if (hosts.size() + names.size() > kMaxHosts) {
      return begin.WrongGot(absl::StrCat("there must be at most ", kMaxHosts, " hosts"),
                            absl::StrCat(hosts.size() + names.size()));
    }
    for (const std::string& name : names) {
      if (!seen.insert(name).second) {
        return begin.WrongGot("a host must be there once", absl::StrCat("'", name, "' again"));
      }
      hosts.push_back(name);
    }
  } while (cursor.Take(','));
  return hosts;
}

StatusOr<std::vector<int>> ExpandTaskCounts(absl::string_view text, absl::string_view where) {
  std::vector<int> counts;
  Cursor cursor(text, where);
  do {
    const Cursor begin = cursor;
    MR_ASSIGN_OR_RETURN(const int count, TakeNumber(&cursor, "a number of tasks"));
    if (count < 1 || count > static_cast<int>(kMaxHosts)) {
      return begin.WrongGot(absl::StrCat("a number of tasks must be in [1, ", kMaxHosts, "]"),
                            absl::StrCat(count));
    }
    int times = 1;
    if (cursor.Take('(')) {
      if (!cursor.Take('x')) return cursor.Wrong("'(' must be followed by 'x', a number and ')'");
      const Cursor number = cursor;
      MR_ASSIGN_OR_RETURN(times, TakeNumber(&cursor, "a number of hosts"));
      if (times < 1 || static_cast<size_t>(times) > kMaxHosts - counts.size()) {
        return number.WrongGot(
            absl::StrCat("a number of hosts must be in [1, ", kMaxHosts - counts.size(), "]"),
            absl::StrCat(times));
      }
      if (!cursor.Take(')')) return cursor.Wrong("'(x' and a number must be followed by ')'");
    }
    if (counts.size() + static_cast<size_t>(times) > kMaxHosts) {
      return begin.WrongGot(absl::StrCat("there must be at most ", kMaxHosts, " hosts"), "more");
    }
    counts.insert(counts.end(), static_cast<size_t>(times), count);
  } while (cursor.Take(','));
  if (!cursor.at_end()) return cursor.Wrong("a number of tasks must be followed by ','");
  return counts;
}

}  // namespace millrace
