// SPDX-License-Identifier: Apache-2.0
#include "graph/device_name.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace millrace {
namespace {

// Letters, digits and underscores, the first one a letter.
bool IsIdentifier(absl::string_view text) {
  if (text.empty() || !absl::ascii_isalpha(static_cast<unsigned char>(text[0]))) return false;
  for (char c : text) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_') return false;
  }
  return true;
}

Status Malformed(absl::string_view text, absl::string_view what) {
  return InvalidArgument("Malformed device specification '", text, "': ", what,
                         "; expected parts are /job:NAME, /replica:N, "
                         "/task:N and /device:TYPE:N");
}

std::string CanonicalType(absl::string_view type) {
  std::string upper = absl::AsciiStrToUpper(type);
  if (upper == "CPU" || upper == "GPU" || upper == "TPU") return upper;
  return std::string(type);
}

// Sets `field`, which no earlier part may have given.
template <typename T>
Status SetOnce(absl::string_view text, absl::string_view key, T value, bool* seen,
               std::optional<T>* field) {
  if (*seen) return Malformed(text, absl::StrCat(key, " must be given once, got it twice"));
  *seen = true;
  *field = std::move(value);
  return absl::OkStatus();
}

StatusOr<std::optional<int>> ParseNumber(absl::string_view text, absl::string_view key,
                                         absl::string_view value) {
  if (value == "*") return std::optional<int>();
  bool digits = !value.empty();
  for (char c : value) digits = digits && absl::ascii_isdigit(static_cast<unsigned char>(c));
  int number = 0;
  if (!digits || !absl::SimpleAtoi(value, &number)) {
    return Malformed(
        text,
        absl::StrCat(key, " must be a number >= 0 that fits 31 bits, or *, got '", value, "'"));
  }
  return std::optional<int>(number);
}

template <typename T>
bool Conflict(const std::optional<T>& a, const std::optional<T>& b) {
  return a && b && *a != *b;
}

template <typename T>
bool Satisfies(const std::optional<T>& given, const std::optional<T>& asked) {
  return !asked || (given && *given == *asked);
}

template <typename T>
void OverrideField(const std::optional<T>& inner, std::optional<T>* field) {
  if (inner) *field = inner;
}

template <typename T>
std::string FieldText(const std::optional<T>& field) {
  return field ? absl::StrCat(*field) : std::string("*");
}

}  // namespace

StatusOr<DeviceName> DeviceName::Parse(absl::string_view text) {
  DeviceName name;
  if (text.empty()) return name;
  bool saw_job = false, saw_replica = false, saw_task = false, saw_device = false;
  absl::string_view rest = text;
  absl::ConsumePrefix(&rest, "/");
  for (absl::string_view part : absl::StrSplit(rest, '/')) {
    const size_t colon = part.find(':');
    if (colon == absl::string_view::npos) {
      return Malformed(text, absl::StrCat("each part must be KEY:VALUE, got '", part, "'"));
    }
    const absl::string_view key = part.substr(0, colon);
    const absl::string_view value = part.substr(colon + 1);
    if (key == "job") {
      if (value != "*" && !IsIdentifier(value)) {
        return Malformed(
            text, absl::StrCat("job must be a letter followed by letters, digits or _, got '",
                               value, "'"));
      }
      MR_RETURN_IF_ERROR(
          SetOnce<std::string>(text, "job", std::string(value), &saw_job, &name.job));
      if (value == "*") name.job.reset();
    } else if (key == "replica" || key == "task") {
      MR_ASSIGN_OR_RETURN(const std::optional<int> number, ParseNumber(text, key, value));
      const bool is_task = key == "task";
      std::optional<int>* field = is_task ? &name.task : &name.replica;
      MR_RETURN_IF_ERROR(SetOnce<int>(text, key, 0, is_task ? &saw_task : &saw_replica, field));
      *field = number;
    } else {
      absl::string_view type = key;  // the legacy "cpu:0"
      absl::string_view id = value;
      bool has_id = true;
      if (key == "device") {
        const size_t second = value.find(':');
        type = value.substr(0, second);
        has_id = second != absl::string_view::npos;
        id = has_id ? value.substr(second + 1) : absl::string_view();
        if (type != "*" && !IsIdentifier(type)) {
          return Malformed(
              text,
              absl::StrCat("device type must be a letter followed by letters, digits or _, got '",
                           type, "'"));
        }
      } else {
        const std::string upper = absl::AsciiStrToUpper(key);
        if (upper != "CPU" && upper != "GPU" && upper != "TPU") {
          return Malformed(text, absl::StrCat("key of a part must be job, replica, task, device, "
                                              "cpu or gpu, got '",
                                              key, "'"));
        }
      }
      MR_RETURN_IF_ERROR(
          SetOnce<std::string>(text, "device", CanonicalType(type), &saw_device, &name.type));
      if (type == "*") name.type.reset();
      if (has_id) {
        MR_ASSIGN_OR_RETURN(name.id, ParseNumber(text, "device id", id));
      }
    }
  }
  return name;
}

std::string DeviceName::ToString() const {
  std::string text;
  if (job) absl::StrAppend(&text, "/job:", *job);
  if (replica) absl::StrAppend(&text, "/replica:", *replica);
  if (task) absl::StrAppend(&text, "/task:", *task);
  if (type || id) absl::StrAppend(&text, "/device:", FieldText(type), ":", FieldText(id));
  return text;
}

bool DeviceName::IsCompatible(const DeviceName& other) const {
  return !Conflict(job, other.job) && !Conflict(replica, other.replica) &&
         !Conflict(task, other.task) && !Conflict(type, other.type) && !Conflict(id, other.id);
}

bool DeviceName::Matches(const DeviceName& request) const {
  return Satisfies(job, request.job) && Satisfies(replica, request.replica) &&
         Satisfies(task, request.task) && Satisfies(type, request.type) &&
         Satisfies(id, request.id);
}

bool DeviceName::IsSameTask(const DeviceName& other) const {
  return job && replica && task && job == other.job && replica == other.replica &&
         task == other.task;
}

void DeviceName::Override(const DeviceName& inner) {
  OverrideField(inner.job, &job);
  OverrideField(inner.replica, &replica);
  OverrideField(inner.task, &task);
  OverrideField(inner.type, &type);
  OverrideField(inner.id, &id);
}

Status DeviceName::Intersect(const DeviceName& other, bool allow_soft_placement) {
  const bool device_conflict = Conflict(type, other.type) || Conflict(id, other.id);
  if (Conflict(job, other.job) || Conflict(replica, other.replica) || Conflict(task, other.task) ||
      (device_conflict && !allow_soft_placement)) {
    return InvalidArgument("Devices '", ToString(), "' and '", other.ToString(),
                           "' must agree in every field that both give");
  }
  Override(other);
  if (device_conflict) {
    type.reset();
    id.reset();
  }
  return absl::OkStatus();
}

DeviceName DeviceName::Task() const {
  DeviceName result;
  result.job = job;
  result.replica = replica;
  result.task = task;
  return result;
}

std::string FullDeviceName(absl::string_view job, int replica, int task, absl::string_view type,
                           int id) {
  return absl::StrCat("/job:", job, "/replica:", replica, "/task:", task, "/device:", type, ":",
                      id);
}

StatusOr<std::string> MergeDeviceNames(absl::string_view base, absl::string_view overriding) {
  MR_ASSIGN_OR_RETURN(DeviceName result, DeviceName::Parse(base));
  MR_ASSIGN_OR_RETURN(const DeviceName inner, DeviceName::Parse(overriding));
  result.Override(inner);
  return result.ToString();
}

StatusOr<std::string> TaskOfDevice(absl::string_view device) {
  MR_ASSIGN_OR_RETURN(DeviceName name, DeviceName::Parse(device));
  if (!name.job || !name.task) {
    return InvalidArgument("Device '", device,
                           "': a name that says its process must give job and task");
  }
  if (!name.replica) name.replica = 0;
  return name.Task().ToString();
}

StatusOr<bool> PassesDeviceFilters(absl::string_view device,
                                   absl::Span<const std::string> filters) {
  MR_ASSIGN_OR_RETURN(const DeviceName name, DeviceName::Parse(device));
  bool passes = filters.empty();
  for (const std::string& filter : filters) {
    MR_ASSIGN_OR_RETURN(const DeviceName allowed, DeviceName::Parse(filter));
    passes = passes || name.IsCompatible(allowed);
  }
  return passes;
}

}  // namespace millrace
