// SPDX-License-Identifier: Apache-2.0
#include "data/initializable_iterator.h"

#include "data/dataset_variant.h"
#include "data/iterator_ops.h"
#include "ops/array/placeholder.h"

namespace millrace::data {

InitializableIterator MakeInitializableIterator(ScopeAt at, const ElementSpec& spec) {
  InitializableIterator made;
  if (spec.empty()) {
    at.scope.UpdateStatus(
        InvalidArgument("MakeInitializableIterator: the types and shapes of the dataset's elements "
                        "must be known, got none; give Map and the like a spec"),
        at.where);
    return made;
  }
  std::vector<DType> types;
  std::vector<PartialShape> shapes;
  for (const ComponentSpec& component : spec) {
    types.push_back(component.dtype);
    shapes.push_back(component.shape);
  }
  const Scope scope = at.scope.CompositeScope("iterator");
  const auto named = [&](const char* name) { return scope.WithName(name); };
  made.dataset =
      Placeholder(ScopeAt(named("dataset"), at.where), DT_VARIANT, PartialShape::Scalar());
  made.handle = IteratorV2(ScopeAt(named("handle"), at.where), types, shapes);
  made.initializer = MakeIterator(ScopeAt(named("make"), at.where), made.dataset, made.handle);
  made.next = IteratorGetNext(ScopeAt(named("next"), at.where), made.handle, types, shapes);
  return made;
}

InitializableIterator MakeInitializableIterator(ScopeAt at, const Dataset& dataset,
                                                const IteratorOptions& options) {
  if (!dataset.status().ok()) {
    at.scope.UpdateStatus(dataset.status(), at.where);
    return {};
  }
  InitializableIterator made = MakeInitializableIterator(at, dataset.spec());
  if (made.initializer.valid()) made.feed = DatasetFeed(dataset, options);
  return made;
}

}  // namespace millrace::data
