// SPDX-License-Identifier: Apache-2.0
#include "examples/census/vocabularies.h"

namespace millrace::census {
namespace {

using Words = std::vector<std::string>;

}  // namespace

const Words& Genders() {
  static const auto* const words = new Words{" Female", " Male"};
  return *words;
}

const Words& Races() {
  static const auto* const words =
      new Words{" Amer-Indian-Eskimo", " Asian-Pac-Islander", " Black", " Other", " White"};
  return *words;
}

const Words& Educations() {
  static const auto* const words = new Words{
      " Bachelors",  " HS-grad",   " 11th",      " Masters",   " 9th",         " Some-college",
      " Assoc-acdm", " Assoc-voc", " 7th-8th",   " Doctorate", " Prof-school", " 5th-6th",
      " 10th",       " 1st-4th",   " Preschool", " 12th"};
  return *words;
}

const Words& MaritalStatuses() {
  static const auto* const words = new Words{
      " Married-civ-spouse", " Divorced", " Married-spouse-absent", " Never-married", " Separated",
      " Married-AF-spouse",  " Widowed"};
  return *words;
}

const Words& Relationships() {
  static const auto* const words = new Words{" Husband",   " Not-in-family", " Wife",
                                             " Own-child", " Unmarried",     " Other-relative"};
  return *words;
}

const Words& Workclasses() {
  static const auto* const words = new Words{" Self-emp-not-inc", " Private",     " State-gov",
                                             " Federal-gov",      " Local-gov",   " ?",
                                             " Self-emp-inc",     " Without-pay", " Never-worked"};
  return *words;
}

const Words& Occupations() {
  static const auto* const words =
      new Words{" Adm-clerical",    " Armed-Forces",      " Craft-repair",      " Exec-managerial",
                " Farming-fishing", " Handlers-cleaners", " Machine-op-inspct", " Other-service",
                " Priv-house-serv", " Prof-specialty",    " Protective-serv",   " Sales",
                " Tech-support",    " Transport-moving"};
  return *words;
}

const Words& EducationsByYears() {
  static const auto* const words = new Words{
      " Preschool", " 1st-4th", " 5th-6th",     " 7th-8th",      " 9th",       " 10th",
      " 11th",      " 12th",    " HS-grad",     " Some-college", " Assoc-voc", " Assoc-acdm",
      " Bachelors", " Masters", " Prof-school", " Doctorate"};
  return *words;
}

}  // namespace millrace::census
