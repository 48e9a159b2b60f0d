// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_EXAMPLES_CENSUS_VOCABULARIES_H_
#define MILLRACE_EXAMPLES_CENSUS_VOCABULARIES_H_

// The words of the census data, each with the blank before it. Their order is that of the ids of a
// model, so of rows in its checkpoints.

#include <string>
#include <vector>

namespace millrace::census {

const std::vector<std::string>& Genders();
const std::vector<std::string>& Races();
const std::vector<std::string>& Educations();
const std::vector<std::string>& MaritalStatuses();
const std::vector<std::string>& Relationships();
const std::vector<std::string>& Workclasses();
// Not a vocabulary of the model, which hashes them: the words that the data have, but " ?".
const std::vector<std::string>& Occupations();
// The educations whose education_num is 1, 2, ...
const std::vector<std::string>& EducationsByYears();

}  // namespace millrace::census

#endif  // MILLRACE_EXAMPLES_CENSUS_VOCABULARIES_H_
