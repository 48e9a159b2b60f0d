// SPDX-License-Identifier: Apache-2.0
#include "saver/variable_rows.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/tensor.h"

namespace millrace {
namespace {

// Copied while the variables are held.
constexpr size_t kHeldBytes = size_t{256} << 10;
// Variables that together are less are kept as they are until they are written: the copies that
// their rows may cost meanwhile are no more.
constexpr size_t kWholeBytes = size_t{1} << 20;

bool HasRows(const Tensor& value) { return IsMemcopyable(value.dtype()) && value.rank() >= 1; }

// The rows of variables of one number of rows, as variable_rows.h says.
class Records : public RowSource {
 public:
  struct Member {
    std::shared_ptr<VariableStorage> variable;
    // As it was when the save began; without a value once its rows are walked.
    Tensor value;
    // There was no update since it was assigned: its rows may come to be updated singly.
    bool is_fresh = false;
    Shape shape;
    size_t row_bytes = 0;
    std::unique_ptr<char[]> piece = nullptr;
  };
  explicit Records(std::vector<Member> members) : members_(std::move(members)) {
    size_t record_bytes = 0;
    size_t most_row_bytes = 1;
    for (Member& m : members_) {
      m.row_bytes = static_cast<size_t>(m.shape.NumElements(1, m.shape.rank())) *
                    DTypeSize(m.variable->dtype());
      record_bytes += m.row_bytes;
      most_row_bytes = std::max(most_row_bytes, m.row_bytes);
    }
    num_rows_ = record_bytes == 0 ? 0 : members_[0].shape.dim(0);
    most_row_bytes_ = most_row_bytes;
    most_rows_ = std::min(RowsIn(kPieceBytes, record_bytes), std::max<int64_t>(num_rows_, 1));
    rows_held_ = RowsIn(kHeldBytes, record_bytes);
    pieces_.resize(members_.size());
  }

  int num_members() const override { return static_cast<int>(members_.size()); }
  DType dtype(int member) const override { return At(member).variable->dtype(); }
  const Shape& shape(int member) const override { return At(member).shape; }

  StatusOr<absl::Span<const absl::string_view>> Next(size_t member_bytes) override {
    const int64_t begin = next_row_;
    const int64_t end =
        std::min({begin + most_rows_, begin + RowsIn(member_bytes, most_row_bytes_), num_rows_});
    if (begin == end) {
      for (Member& m : members_) {
        m.piece.reset();
        m.value = Tensor();
      }
      std::fill(pieces_.begin(), pieces_.end(), absl::string_view());
      return absl::MakeConstSpan(pieces_);
    }
    LetGo();
    MR_RETURN_IF_ERROR(CopyWalked(begin, end));
    for (size_t k = 0; k < members_.size(); ++k) {
      const Member& m = members_[k];
      const size_t size = static_cast<size_t>(end - begin) * m.row_bytes;
      pieces_[k] = m.value.has_value()
                       ? absl::string_view(m.value.bytes().data(), m.value.bytes().size())
                             .substr(static_cast<size_t>(begin) * m.row_bytes, size)
                       : absl::string_view(m.piece.get(), size);
    }
    next_row_ = end;
    return absl::MakeConstSpan(pieces_);
  }

  // Of the values of variables whose rows are updated by now, and, because updates of the same rows
  // may be going on in them, of those that have had no update, not one of the whole either.
  bool LetGo() override {
    bool any = false;
    for (Member& m : members_) {
      if (m.value.has_value() && m.variable->HowKept(m.value) == VariableStorage::Kept::kRows) {
        m.value = Tensor();
      }
      any = any || !m.value.has_value();
    }
    for (Member& m : members_) {
      if (any && m.is_fresh && m.value.has_value() && !m.variable->is_updated_whole() &&
          m.variable->HowKept(m.value) != VariableStorage::Kept::kPast) {
        m.value = Tensor();
      }
    }
    return std::any_of(members_.begin(), members_.end(),
                       [](const Member& m) { return m.value.has_value(); });
  }

 private:
  // At least one.
  static int64_t RowsIn(size_t bytes, size_t row_bytes) {
    return static_cast<int64_t>(std::max<size_t>(bytes / std::max<size_t>(row_bytes, 1), 1));
  }

  const Member& At(int member) const { return members_[static_cast<size_t>(member)]; }

  Status CopyWalked(int64_t begin, int64_t end) {
    std::vector<VariableStorage*> walked;
    std::vector<Shape> shapes;
    for (Member& m : members_) {
      if (m.value.has_value()) continue;
      walked.push_back(m.variable.get());
      shapes.push_back(m.shape);
      if (m.piece == nullptr) {
        m.piece =
            std::make_unique_for_overwrite<char[]>(static_cast<size_t>(most_rows_) * m.row_bytes);
      }
    }
    if (walked.empty()) return absl::OkStatus();
    for (int64_t row = begin; row < end; row += rows_held_) {
      std::vector<char*> outs;
      for (const Member& m : members_) {
        if (m.value.has_value()) continue;
        outs.push_back(m.piece.get() + static_cast<size_t>(row - begin) * m.row_bytes);
      }
      MR_RETURN_IF_ERROR(VariableStorage::CopyRows(walked, shapes,
                                                   {row, std::min(row + rows_held_, end)},
                                                   /*since=*/0, outs)
                             .status());
    }
    return absl::OkStatus();
  }

  std::vector<Member> members_;
  int64_t num_rows_ = 0;
  size_t most_row_bytes_ = 1;
  int64_t most_rows_ = 1;  // of a piece
  int64_t rows_held_ = 1;
  int64_t next_row_ = 0;
  std::vector<absl::string_view> pieces_;
};

}  // namespace

StatusOr<std::vector<ValueToSave>> ValuesOfVariables(
    absl::Span<const std::shared_ptr<VariableStorage>> variables) {
  const size_t n = variables.size();
  std::map<const VariableStorage*, size_t> first;  // where a variable comes first
  for (size_t i = 0; i < n; ++i) first.emplace(variables[i].get(), i);
  // Those that updates change together, each set named by one of them.
  std::vector<size_t> set_of(n);
  std::iota(set_of.begin(), set_of.end(), size_t{0});
  const auto root = [&](size_t i) {
    while (set_of[i] != i) i = set_of[i];
    return i;
  };
  std::map<int64_t, size_t> fresh;  // by number of rows
  for (size_t i = 0; i < n; ++i) {
    if (first[variables[i].get()] != i) continue;
    const VariableStorage* const with = variables[i]->updated_with();
    if (with != nullptr) {
      if (const auto other = first.find(with); other != first.end()) {
        set_of[root(i)] = root(other->second);
      }
      continue;
    }
    MR_ASSIGN_OR_RETURN(const Shape shape, variables[i]->shape());
    if (shape.rank() < 1) continue;
    const auto [other, is_first] = fresh.emplace(shape.dim(0), i);
    if (!is_first) set_of[root(i)] = root(other->second);
  }
  std::map<size_t, std::vector<size_t>> sets;
  for (size_t i = 0; i < n; ++i) {
    if (first[variables[i].get()] == i) sets[root(i)].push_back(i);
  }

  std::vector<ValueToSave> values(n);
  for (const auto& [name, set] : sets) {
    std::vector<VariableStorage*> together;
    for (const size_t i : set) together.push_back(variables[i].get());
    MR_ASSIGN_OR_RETURN(std::vector<Tensor> read, VariableStorage::ReadAtOnce(together));
    // After the read: what is updated as a whole is known by then of the value that was read.
    std::vector<bool> is_fresh;
    for (const size_t i : set) is_fresh.push_back(!variables[i]->is_updated_whole());
    std::vector<Shape> shapes(set.size());
    // By number of rows: of the variables that are, or may come to be, updated by rows.
    std::map<int64_t, std::vector<size_t>> by_rows;
    std::map<int64_t, size_t> bytes;
    std::map<int64_t, bool> in_rows;
    for (size_t k = 0; k < set.size(); ++k) {
      const size_t i = set[k];
      if (read[k].has_value() && !(is_fresh[k] && HasRows(read[k]))) {
        // Also where others of its record are walked: it is updated as a whole.
        values[i] = read[k];
        continue;
      }
      MR_ASSIGN_OR_RETURN(shapes[k], read[k].has_value() ? StatusOr<Shape>(read[k].shape())
                                                         : variables[i]->shape());
      const Shape& shape = shapes[k];
      // It had rows when it was read.
      if (shape.rank() < 1) {
        return absl::AbortedError(absl::StrCat("Variable '", variables[i]->name(),
                                               "' must keep its rows while it is saved, got shape ",
                                               shape.ToString(), " by now"));
      }
      const int64_t rows = shape.dim(0);
      by_rows[rows].push_back(k);
      in_rows[rows] = in_rows[rows] || !read[k].has_value();
      bytes[rows] += static_cast<size_t>(shape.num_elements()) * DTypeSize(variables[i]->dtype());
    }
    for (const auto& [rows, members] : by_rows) {
      if (!in_rows[rows] && bytes[rows] < kWholeBytes) {
        for (const size_t k : members) values[set[k]] = read[k];
        continue;
      }
      std::vector<Records::Member> record;
      for (const size_t k : members) {
        record.push_back(
            {variables[set[k]], std::move(read[k]), is_fresh[k], std::move(shapes[k])});
      }
      const auto source = std::make_shared<Records>(std::move(record));
      for (size_t m = 0; m < members.size(); ++m) {
        values[set[members[m]]] = RowsToSave{source, static_cast<int>(m)};
      }
    }
  }
  for (size_t i = 0; i < n; ++i) {
    if (const size_t at = first[variables[i].get()]; at != i) values[i] = values[at];
  }
  return values;
}

}  // namespace millrace
