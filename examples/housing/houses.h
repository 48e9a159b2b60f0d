// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_EXAMPLES_HOUSING_HOUSES_H_
#define MILLRACE_EXAMPLES_HOUSING_HOUSES_H_

// Prices of houses by district: rows like those of the California census of 1990, drawn by this
// program (no file is downloaded), and the model that estimates the price, wide and deep.
//
//   longitude,latitude,median_age,rooms,population,households,income,ocean,price
//   -121.74,37.65,28,3012,1204,480,4.1,INLAND,1.87
//
// The price (in hundreds of thousands) follows income, the distance to two cities, the ocean and
// the age, by a formula with noise; a quarter of its variance is noise.
//
// Row i of a seed is the same on every machine. Values; any thread.

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "data/dataset.h"
#include "estimator/estimator.h"

namespace millrace {

// Writes rows [first, first + count) of `seed` as CSV, without a header.
Status WriteHouses(const std::string& path, uint64_t seed, int64_t first, int64_t count);

// The same rows without a file, in batches, as they are needed: for as many as wanted.
data::Dataset DrawnHouses(uint64_t seed, int64_t count, int64_t batch_size);

// As in the article: read_dataset(name, mode, batch_size). Rows of `<directory>/<name>.csv`, for
// ever and in another order each time when it trains (with a buffer of a batch for each worker),
// once and in their order otherwise.
InputFn ReadHouses(const std::string& directory, const std::string& name, Mode mode,
                   int64_t batch_size);

// DNNLinearCombinedRegressor over these columns, which measures "rmse", too.
Estimator HousePrices(const EstimatorOptions& options);

// Serialized tensorflow.Examples of the features.
StatusOr<ServingInputReceiverFn> HouseReceiver();

}  // namespace millrace

#endif  // MILLRACE_EXAMPLES_HOUSING_HOUSES_H_
