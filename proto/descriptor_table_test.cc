// SPDX-License-Identifier: Apache-2.0
//
// The wire contract, read a second time.
//
// The tables below were written from the schemas of TensorFlow 1.15, not from
// ours: per message every field with number, type and oneof, per enum every
// value, per service every method. Each is compared with the generated
// descriptors in both directions, so that neither a missing nor an extra
// message, field, value or method gets through.
//
// A field's line is `number type name [oneof]`; names of types are relative to
// the package tensorflow.

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "proto/checkpoint_state.pb.h"
#include "proto/config.pb.h"
#include "proto/control_flow.pb.h"
#include "proto/critical_section.pb.h"
#include "proto/device_properties.pb.h"
#include "proto/event.pb.h"
#include "proto/example.pb.h"
#include "proto/example_parser_configuration.pb.h"
#include "proto/graph_debug_info.pb.h"
#include "proto/kernel_def.pb.h"
#include "proto/log_memory.pb.h"
#include "proto/manifest.pb.h"
#include "proto/master.pb.h"
#include "proto/master_service.grpc.pb.h"
#include "proto/master_service.pb.h"
#include "proto/queue_runner.pb.h"
#include "proto/reader_base.pb.h"
#include "proto/saved_model.pb.h"
#include "proto/saved_tensor_slice.pb.h"
#include "proto/tensor_bundle.pb.h"
#include "proto/transport_options.pb.h"
#include "proto/worker.pb.h"
#include "proto/worker_service.grpc.pb.h"
#include "proto/worker_service.pb.h"

namespace millrace {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::DescriptorPool;
using ::google::protobuf::EnumDescriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::FileDescriptor;

constexpr absl::string_view kMessages = R"(
TensorShapeProto
  2 repeated TensorShapeProto.Dim dim
  3 bool unknown_rank
TensorShapeProto.Dim
  1 int64 size
  2 string name
ResourceHandleProto
  1 string device
  2 string container
  3 string name
  4 uint64 hash_code
  5 string maybe_type_name
  6 repeated ResourceHandleProto.DtypeAndShape dtypes_and_shapes
ResourceHandleProto.DtypeAndShape
  1 DataType dtype
  2 TensorShapeProto shape
TensorProto
  1 DataType dtype
  2 TensorShapeProto tensor_shape
  3 int32 version_number
  4 bytes tensor_content
  5 repeated float float_val
  6 repeated double double_val
  7 repeated int32 int_val
  8 repeated bytes string_val
  9 repeated float scomplex_val
  10 repeated int64 int64_val
  11 repeated bool bool_val
  12 repeated double dcomplex_val
  13 repeated int32 half_val
  14 repeated ResourceHandleProto resource_handle_val
  15 repeated VariantTensorDataProto variant_val
  16 repeated uint32 uint32_val
  17 repeated uint64 uint64_val
VariantTensorDataProto
  1 string type_name
  2 bytes metadata
  3 repeated TensorProto tensors
AttrValue
  1 AttrValue.ListValue list value
  2 bytes s value
  3 int64 i value
  4 float f value
  5 bool b value
  6 DataType type value
  7 TensorShapeProto shape value
  8 TensorProto tensor value
  9 string placeholder value
  10 NameAttrList func value
AttrValue.ListValue
  2 repeated bytes s
  3 repeated int64 i
  4 repeated float f
  5 repeated bool b
  6 repeated DataType type
  7 repeated TensorShapeProto shape
  8 repeated TensorProto tensor
  9 repeated NameAttrList func
NameAttrList
  1 string name
  2 map<string,AttrValue> attr
NodeDef
  1 string name
  2 string op
  3 repeated string input
  4 string device
  5 map<string,AttrValue> attr
  6 NodeDef.ExperimentalDebugInfo experimental_debug_info
NodeDef.ExperimentalDebugInfo
  1 repeated string original_node_names
  2 repeated string original_func_names
VersionDef
  1 int32 producer
  2 int32 min_consumer
  3 repeated int32 bad_consumers
OpDef
  1 string name
  2 repeated OpDef.ArgDef input_arg
  3 repeated OpDef.ArgDef output_arg
  4 repeated OpDef.AttrDef attr
  5 string summary
  6 string description
  8 OpDeprecation deprecation
  16 bool is_aggregate
  17 bool is_stateful
  18 bool is_commutative
  19 bool allows_uninitialized_input
  20 repeated string control_output
OpDef.ArgDef
  1 string name
  2 string description
  3 DataType type
  4 string type_attr
  5 string number_attr
  6 string type_list_attr
  16 bool is_ref
OpDef.AttrDef
  1 string name
  2 string type
  3 AttrValue default_value
  4 string description
  5 bool has_minimum
  6 int64 minimum
  7 AttrValue allowed_values
OpDeprecation
  1 int32 version
  2 string explanation
OpList
  1 repeated OpDef op
FunctionDefLibrary
  1 repeated FunctionDef function
  2 repeated GradientDef gradient
FunctionDef
  1 OpDef signature
  3 repeated NodeDef node_def
  4 map<string,string> ret
  5 map<string,AttrValue> attr
  6 map<string,string> control_ret
  7 map<uint32,FunctionDef.ArgAttrs> arg_attr
FunctionDef.ArgAttrs
  1 map<string,AttrValue> attr
GradientDef
  1 string function_name
  2 string gradient_func
GraphDef
  1 repeated NodeDef node
  2 FunctionDefLibrary library
  3 int32 version
  4 VersionDef versions
KernelDef
  1 string op
  2 string device_type
  3 repeated KernelDef.AttrConstraint constraint
  4 repeated string host_memory_arg
  5 string label
  6 int32 priority
KernelDef.AttrConstraint
  1 string name
  2 AttrValue allowed_values
KernelList
  1 repeated KernelDef kernel
NamedTensorProto
  1 string name
  2 TensorProto tensor
ReaderBaseState
  1 int64 work_started
  2 int64 work_finished
  3 int64 num_records_produced
  4 bytes current_work
TensorSliceProto
  1 repeated TensorSliceProto.Extent extent
TensorSliceProto.Extent
  1 int64 start
  2 int64 length has_length
VariableDef
  1 string variable_name
  2 string initializer_name
  3 string snapshot_name
  4 SaveSliceInfoDef save_slice_info_def
  5 bool is_resource
  6 string initial_value_name
  7 bool trainable
  8 VariableSynchronization synchronization
  9 VariableAggregation aggregation
SaveSliceInfoDef
  1 string full_name
  2 repeated int64 full_shape
  3 repeated int64 var_offset
  4 repeated int64 var_shape
AllocationDescription
  1 int64 requested_bytes
  2 int64 allocated_bytes
  3 string allocator_name
  4 int64 allocation_id
  5 bool has_single_reference
  6 uint64 ptr
TensorDescription
  1 DataType dtype
  2 TensorShapeProto shape
  4 AllocationDescription allocation_description
AllocationRecord
  1 int64 alloc_micros
  2 int64 alloc_bytes
AllocatorMemoryUsed
  1 string allocator_name
  2 int64 total_bytes
  3 int64 peak_bytes
  4 int64 live_bytes
  5 int64 allocator_bytes_in_use
  6 repeated AllocationRecord allocation_records
NodeOutput
  1 int32 slot
  3 TensorDescription tensor_description
MemoryStats
  1 int64 temp_memory_size
  2 int64 device_temp_memory_size
  3 int64 persistent_memory_size
  4 int64 device_persistent_memory_size
  5 repeated int64 persistent_tensor_alloc_ids
  6 repeated int64 device_persistent_tensor_alloc_ids
NodeExecStats
  1 string node_name
  2 int64 all_start_micros
  3 int64 op_start_rel_micros
  4 int64 op_end_rel_micros
  5 int64 all_end_rel_micros
  6 repeated AllocatorMemoryUsed memory
  7 repeated NodeOutput output
  8 string timeline_label
  9 int64 scheduled_micros
  10 uint32 thread_id
  11 repeated AllocationDescription referenced_tensor
  12 MemoryStats memory_stats
  13 int64 all_start_nanos
  14 int64 op_start_rel_nanos
  15 int64 op_end_rel_nanos
  16 int64 all_end_rel_nanos
  17 int64 scheduled_nanos
DeviceStepStats
  1 string device
  2 repeated NodeExecStats node_stats
  3 map<uint32,string> thread_names
StepStats
  1 repeated DeviceStepStats dev_stats
CostGraphDef
  1 repeated CostGraphDef.Node node
CostGraphDef.Node
  1 string name
  2 string device
  3 int32 id
  4 repeated CostGraphDef.Node.InputInfo input_info
  5 repeated CostGraphDef.Node.OutputInfo output_info
  6 int64 temporary_memory_size
  7 bool is_final
  8 repeated int32 control_input
  9 int64 compute_cost
  10 int64 host_temp_memory_size
  11 int64 device_temp_memory_size
  12 int64 persistent_memory_size
  14 int64 compute_time
  15 int64 memory_time
  16 int64 device_persistent_memory_size
  17 bool inaccurate
CostGraphDef.Node.InputInfo
  1 int32 preceding_node
  2 int32 preceding_port
CostGraphDef.Node.OutputInfo
  1 int64 size
  2 int64 alias_input_port
  3 TensorShapeProto shape
  4 DataType dtype
InterconnectLink
  1 int32 device_id
  2 string type
  3 int32 strength
LocalLinks
  1 repeated InterconnectLink link
DeviceLocality
  1 int32 bus_id
  2 int32 numa_node
  3 LocalLinks links
DeviceAttributes
  1 string name
  2 string device_type
  4 int64 memory_limit
  5 DeviceLocality locality
  6 fixed64 incarnation
  7 string physical_device_desc
DeviceProperties
  1 string type
  2 string vendor
  3 string model
  4 int64 frequency
  5 int64 num_cores
  6 map<string,string> environment
  7 int64 num_registers
  8 int64 l1_cache_size
  9 int64 l2_cache_size
  10 int64 l3_cache_size
  11 int64 shared_memory_size_per_multiprocessor
  12 int64 memory_size
  13 int64 bandwidth
NamedDevice
  1 string name
  2 DeviceProperties properties
MemoryLogStep
  1 int64 step_id
  2 string handle
MemoryLogTensorAllocation
  1 int64 step_id
  2 string kernel_name
  3 TensorDescription tensor
MemoryLogTensorDeallocation
  1 int64 allocation_id
  2 string allocator_name
MemoryLogTensorOutput
  1 int64 step_id
  2 string kernel_name
  3 int32 index
  4 TensorDescription tensor
MemoryLogRawAllocation
  1 int64 step_id
  2 string operation
  3 int64 num_bytes
  4 uint64 ptr
  5 int64 allocation_id
  6 string allocator_name
MemoryLogRawDeallocation
  1 int64 step_id
  2 string operation
  3 int64 allocation_id
  4 string allocator_name
  5 bool deferred
JobDef
  1 string name
  2 map<int32,string> tasks
ClusterDef
  1 repeated JobDef job
ServerDef
  1 ClusterDef cluster
  2 string job_name
  3 int32 task_index
  4 ConfigProto default_session_config
  5 string protocol
DebugTensorWatch
  1 string node_name
  2 int32 output_slot
  3 repeated string debug_ops
  4 repeated string debug_urls
  5 bool tolerate_debug_op_creation_failures
DebugOptions
  4 repeated DebugTensorWatch debug_tensor_watch_opts
  10 int64 global_step
  11 bool reset_disk_byte_usage
DebuggedSourceFile
  1 string host
  2 string file_path
  3 int64 last_modified
  4 int64 bytes
  5 repeated string lines
DebuggedSourceFiles
  1 repeated DebuggedSourceFile source_files
VerifierConfig
  1 int64 verification_timeout_in_ms
  2 VerifierConfig.Toggle structure_verifier
AutoParallelOptions
  1 bool enable
  2 int32 num_replicas
ScopedAllocatorOptions
  1 repeated string enable_op
RewriterConfig
  1 RewriterConfig.Toggle layout_optimizer
  2 bool disable_model_pruning
  3 RewriterConfig.Toggle constant_folding
  4 RewriterConfig.MemOptType memory_optimization
  5 AutoParallelOptions auto_parallel
  6 string memory_optimizer_target_node_name_scope
  7 RewriterConfig.Toggle arithmetic_optimization
  8 RewriterConfig.Toggle dependency_optimization
  9 RewriterConfig.Toggle loop_optimization
  10 RewriterConfig.Toggle function_optimization
  11 RewriterConfig.Toggle debug_stripper
  12 RewriterConfig.NumIterationsType meta_optimizer_iterations
  13 RewriterConfig.Toggle shape_optimization
  14 RewriterConfig.Toggle remapping
  15 RewriterConfig.Toggle scoped_allocator_optimization
  16 ScopedAllocatorOptions scoped_allocator_opts
  17 int32 min_graph_nodes
  18 RewriterConfig.Toggle pin_to_host_optimization
  19 bool disable_meta_optimizer
  20 int64 meta_optimizer_timeout_ms
  21 bool fail_on_optimizer_errors
  22 RewriterConfig.Toggle implementation_selector
  23 RewriterConfig.Toggle auto_mixed_precision
  100 repeated string optimizers
  200 repeated RewriterConfig.CustomGraphOptimizer custom_optimizers
  300 VerifierConfig inter_optimizer_verifier_config
  301 VerifierConfig post_optimization_verifier_config
RewriterConfig.CustomGraphOptimizer
  1 string name
  2 map<string,AttrValue> parameter_map
GPUOptions
  1 double per_process_gpu_memory_fraction
  2 string allocator_type
  3 int64 deferred_deletion_bytes
  4 bool allow_growth
  5 string visible_device_list
  6 int32 polling_active_delay_usecs
  7 int32 polling_inactive_delay_msecs
  8 bool force_gpu_compatible
  9 GPUOptions.Experimental experimental
GPUOptions.Experimental
  1 repeated GPUOptions.Experimental.VirtualDevices virtual_devices
  2 bool use_unified_memory
  3 int32 num_dev_to_dev_copy_streams
  4 string collective_ring_order
  5 bool timestamped_allocator
  7 int32 kernel_tracker_max_interval
  8 int32 kernel_tracker_max_bytes
  9 int32 kernel_tracker_max_pending
GPUOptions.Experimental.VirtualDevices
  1 repeated float memory_limit_mb
OptimizerOptions
  1 bool do_common_subexpression_elimination
  2 bool do_constant_folding
  3 OptimizerOptions.Level opt_level
  4 bool do_function_inlining
  5 OptimizerOptions.GlobalJitLevel global_jit_level
  6 int64 max_folded_constant_in_bytes
GraphOptions
  2 bool enable_recv_scheduling
  3 OptimizerOptions optimizer_options
  4 int64 build_cost_model
  5 bool infer_shapes
  6 bool place_pruned_graph
  7 bool enable_bfloat16_sendrecv
  8 int32 timeline_step
  9 int64 build_cost_model_after
  10 RewriterConfig rewrite_options
ThreadPoolOptionProto
  1 int32 num_threads
  2 string global_name
RPCOptions
  1 bool use_rpc_for_inprocess_master
  2 string compression_algorithm
  3 int32 compression_level
  4 bool cache_rpc_response
  5 bool disable_session_connection_sharing
SessionMetadata
  1 string name
  2 int64 version
ConfigProto
  1 map<string,int32> device_count
  2 int32 intra_op_parallelism_threads
  3 int32 placement_period
  4 repeated string device_filters
  5 int32 inter_op_parallelism_threads
  6 GPUOptions gpu_options
  7 bool allow_soft_placement
  8 bool log_device_placement
  9 bool use_per_session_threads
  10 GraphOptions graph_options
  11 int64 operation_timeout_in_ms
  12 repeated ThreadPoolOptionProto session_inter_op_thread_pool
  13 RPCOptions rpc_options
  14 ClusterDef cluster_def
  15 bool isolate_session_state
  16 ConfigProto.Experimental experimental
ConfigProto.Experimental
  1 string collective_group_leader
  3 string executor_type
  4 int32 recv_buf_max_chunk
  5 bool use_numa_affinity
  6 bool collective_deterministic_sequential_execution
  7 bool collective_nccl
  8 bool share_session_state_in_clusterspec_propagation
  9 bool disable_thread_spinning
  10 bool share_cluster_devices_in_session
  11 SessionMetadata session_metadata
  12 bool optimize_for_static_graph
RunOptions
  1 RunOptions.TraceLevel trace_level
  2 int64 timeout_in_ms
  3 int32 inter_op_thread_pool
  5 bool output_partition_graphs
  6 DebugOptions debug_options
  7 bool report_tensor_allocations_upon_oom
  8 RunOptions.Experimental experimental
RunOptions.Experimental
  1 int64 collective_graph_key
  2 bool use_run_handler_pool
RunMetadata
  1 StepStats step_stats
  2 CostGraphDef cost_graph
  3 repeated GraphDef partition_graphs
  4 repeated RunMetadata.FunctionGraphs function_graphs
RunMetadata.FunctionGraphs
  1 repeated GraphDef partition_graphs
  2 GraphDef pre_optimization_graph
  3 GraphDef post_optimization_graph
TensorConnection
  1 string from_tensor
  2 string to_tensor
CallableOptions
  1 repeated string feed
  2 repeated string fetch
  3 repeated string target
  4 RunOptions run_options
  5 repeated TensorConnection tensor_connection
  6 map<string,string> feed_devices
  7 map<string,string> fetch_devices
  8 bool fetch_skip_sync
SaverDef
  1 string filename_tensor_name
  2 string save_tensor_name
  3 string restore_op_name
  4 int32 max_to_keep
  5 bool sharded
  6 float keep_checkpoint_every_n_hours
  7 SaverDef.CheckpointFormatVersion version
CheckpointState
  1 string model_checkpoint_path
  2 repeated string all_model_checkpoint_paths
  3 repeated double all_model_checkpoint_timestamps
  4 double last_preserved_timestamp
BundleHeaderProto
  1 int32 num_shards
  2 BundleHeaderProto.Endianness endianness
  3 VersionDef version
BundleEntryProto
  1 DataType dtype
  2 TensorShapeProto shape
  3 int32 shard_id
  4 int64 offset
  5 int64 size
  6 fixed32 crc32c
  7 repeated TensorSliceProto slices
SavedSliceMeta
  1 string name
  2 TensorShapeProto shape
  3 DataType type
  4 repeated TensorSliceProto slice
SavedTensorSliceMeta
  1 repeated SavedSliceMeta tensor
  2 VersionDef versions
SavedSlice
  1 string name
  2 TensorSliceProto slice
  3 TensorProto data
SavedTensorSlices
  1 SavedTensorSliceMeta meta
  2 SavedSlice data
StructuredValue
  1 NoneValue none_value kind
  11 double float64_value kind
  12 sint64 int64_value kind
  13 string string_value kind
  14 bool bool_value kind
  31 TensorShapeProto tensor_shape_value kind
  32 DataType tensor_dtype_value kind
  33 TensorSpecProto tensor_spec_value kind
  34 TypeSpecProto type_spec_value kind
  51 ListValue list_value kind
  52 TupleValue tuple_value kind
  53 DictValue dict_value kind
  54 NamedTupleValue named_tuple_value kind
NoneValue
ListValue
  1 repeated StructuredValue values
TupleValue
  1 repeated StructuredValue values
DictValue
  1 map<string,StructuredValue> fields
PairValue
  1 string key
  2 StructuredValue value
NamedTupleValue
  1 string name
  2 repeated PairValue values
TensorSpecProto
  1 string name
  2 TensorShapeProto shape
  3 DataType dtype
TypeSpecProto
  1 TypeSpecProto.TypeSpecClass type_spec_class
  2 StructuredValue type_state
  3 string type_spec_class_name
TrackableObjectGraph
  1 repeated TrackableObjectGraph.TrackableObject nodes
TrackableObjectGraph.TrackableObject
  1 repeated TrackableObjectGraph.TrackableObject.ObjectReference children
  2 repeated TrackableObjectGraph.TrackableObject.SerializedTensor attributes
  3 repeated TrackableObjectGraph.TrackableObject.SlotVariableReference slot_variables
TrackableObjectGraph.TrackableObject.ObjectReference
  1 int32 node_id
  2 string local_name
TrackableObjectGraph.TrackableObject.SerializedTensor
  1 string name
  2 string full_name
  3 string checkpoint_key
  4 bool optional_restore
TrackableObjectGraph.TrackableObject.SlotVariableReference
  1 int32 original_variable_node_id
  2 string slot_name
  3 int32 slot_variable_node_id
SavedObjectGraph
  1 repeated SavedObject nodes
  2 map<string,SavedConcreteFunction> concrete_functions
SavedObject
  1 repeated TrackableObjectGraph.TrackableObject.ObjectReference children
  3 repeated TrackableObjectGraph.TrackableObject.SlotVariableReference slot_variables
  4 SavedUserObject user_object kind
  5 SavedAsset asset kind
  6 SavedFunction function kind
  7 SavedVariable variable kind
  8 SavedBareConcreteFunction bare_concrete_function kind
  9 SavedConstant constant kind
  10 SavedResource resource kind
SavedUserObject
  1 string identifier
  2 VersionDef version
  3 string metadata
SavedAsset
  1 int32 asset_file_def_index
SavedFunction
  1 repeated string concrete_functions
  2 FunctionSpec function_spec
SavedConcreteFunction
  2 repeated int32 bound_inputs
  3 StructuredValue canonicalized_input_signature
  4 StructuredValue output_signature
SavedBareConcreteFunction
  1 string concrete_function_name
  2 repeated string argument_keywords
  3 int64 allowed_positional_arguments
SavedConstant
  1 string operation
SavedVariable
  1 DataType dtype
  2 TensorShapeProto shape
  3 bool trainable
  4 VariableSynchronization synchronization
  5 VariableAggregation aggregation
  6 string name
FunctionSpec
  1 StructuredValue fullargspec
  2 bool is_method
  5 StructuredValue input_signature
SavedResource
  1 string device
MetaGraphDef
  1 MetaGraphDef.MetaInfoDef meta_info_def
  2 GraphDef graph_def
  3 SaverDef saver_def
  4 map<string,CollectionDef> collection_def
  5 map<string,SignatureDef> signature_def
  6 repeated AssetFileDef asset_file_def
  7 SavedObjectGraph object_graph_def
MetaGraphDef.MetaInfoDef
  1 string meta_graph_version
  2 OpList stripped_op_list
  3 google.protobuf.Any any_info
  4 repeated string tags
  5 string tensorflow_version
  6 string tensorflow_git_version
  7 bool stripped_default_attrs
CollectionDef
  1 CollectionDef.NodeList node_list kind
  2 CollectionDef.BytesList bytes_list kind
  3 CollectionDef.Int64List int64_list kind
  4 CollectionDef.FloatList float_list kind
  5 CollectionDef.AnyList any_list kind
CollectionDef.NodeList
  1 repeated string value
CollectionDef.BytesList
  1 repeated bytes value
CollectionDef.Int64List
  1 repeated int64 value
CollectionDef.FloatList
  1 repeated float value
CollectionDef.AnyList
  1 repeated google.protobuf.Any value
TensorInfo
  1 string name encoding
  2 DataType dtype
  3 TensorShapeProto tensor_shape
  4 TensorInfo.CooSparse coo_sparse encoding
  5 TensorInfo.CompositeTensor composite_tensor encoding
TensorInfo.CooSparse
  1 string values_tensor_name
  2 string indices_tensor_name
  3 string dense_shape_tensor_name
TensorInfo.CompositeTensor
  1 TypeSpecProto type_spec
  2 repeated TensorInfo components
SignatureDef
  1 map<string,TensorInfo> inputs
  2 map<string,TensorInfo> outputs
  3 string method_name
  4 map<string,TensorProto> defaults
AssetFileDef
  1 TensorInfo tensor_info
  2 string filename
SavedModel
  1 int64 saved_model_schema_version
  2 repeated MetaGraphDef meta_graphs
serving.Signatures
  1 serving.Signature default_signature
  2 map<string,serving.Signature> named_signatures
serving.Signature
  1 serving.RegressionSignature regression_signature type
  2 serving.ClassificationSignature classification_signature type
  3 serving.GenericSignature generic_signature type
serving.RegressionSignature
  1 serving.TensorBinding input
  2 serving.TensorBinding output
serving.ClassificationSignature
  1 serving.TensorBinding input
  2 serving.TensorBinding classes
  3 serving.TensorBinding scores
serving.GenericSignature
  1 map<string,serving.TensorBinding> map
serving.TensorBinding
  1 string tensor_name
serving.AssetFile
  1 serving.TensorBinding tensor_binding
  2 string filename
QueueRunnerDef
  1 string queue_name
  2 repeated string enqueue_op_name
  3 string close_op_name
  4 string cancel_op_name
  5 repeated error.Code queue_closed_exception_types
ValuesDef
  1 repeated string values
  2 map<string,string> external_values
ControlFlowContextDef
  1 CondContextDef cond_ctxt ctxt
  2 WhileContextDef while_ctxt ctxt
CondContextDef
  1 string context_name
  2 string pred_name
  3 string pivot_name
  4 int32 branch
  5 ValuesDef values_def
  6 repeated ControlFlowContextDef nested_contexts
WhileContextDef
  1 string context_name
  2 int32 parallel_iterations
  3 bool back_prop
  4 bool swap_memory
  5 string pivot_name
  6 string pivot_for_pred_name
  7 string pivot_for_body_name
  8 repeated string loop_exit_names
  9 ValuesDef values_def
  10 repeated string loop_enter_names
  11 string maximum_iterations_name
  12 repeated ControlFlowContextDef nested_contexts
CriticalSectionDef
  1 string critical_section_name
CriticalSectionExecutionDef
  1 string execute_in_critical_section_name
  2 bool exclusive_resource_access
GraphDebugInfo
  1 repeated string files
  2 map<string,GraphDebugInfo.StackTrace> traces
GraphDebugInfo.FileLineCol
  1 int32 file_index
  2 int32 line
  3 int32 col
  4 string func
  5 string code
GraphDebugInfo.StackTrace
  1 repeated GraphDebugInfo.FileLineCol file_line_cols
BytesList
  1 repeated bytes value
FloatList
  1 repeated float value
Int64List
  1 repeated int64 value
Feature
  1 BytesList bytes_list kind
  2 FloatList float_list kind
  3 Int64List int64_list kind
Features
  1 map<string,Feature> feature
FeatureList
  1 repeated Feature feature
FeatureLists
  1 map<string,FeatureList> feature_list
Example
  1 Features features
SequenceExample
  1 Features context
  2 FeatureLists feature_lists
VarLenFeatureProto
  1 DataType dtype
  2 string values_output_tensor_name
  3 string indices_output_tensor_name
  4 string shapes_output_tensor_name
FixedLenFeatureProto
  1 DataType dtype
  2 TensorShapeProto shape
  3 TensorProto default_value
  4 string values_output_tensor_name
FeatureConfiguration
  1 FixedLenFeatureProto fixed_len_feature config
  2 VarLenFeatureProto var_len_feature config
ExampleParserConfiguration
  1 map<string,FeatureConfiguration> feature_map
SummaryDescription
  1 string type_hint
HistogramProto
  1 double min
  2 double max
  3 double num
  4 double sum
  5 double sum_squares
  6 repeated double bucket_limit
  7 repeated double bucket
SummaryMetadata
  1 SummaryMetadata.PluginData plugin_data
  2 string display_name
  3 string summary_description
SummaryMetadata.PluginData
  1 string plugin_name
  2 bytes content
Summary
  1 repeated Summary.Value value
Summary.Image
  1 int32 height
  2 int32 width
  3 int32 colorspace
  4 bytes encoded_image_string
Summary.Audio
  1 float sample_rate
  2 int64 num_channels
  3 int64 length_frames
  4 bytes encoded_audio_string
  5 string content_type
Summary.Value
  1 string tag
  2 float simple_value value
  3 bytes obsolete_old_style_histogram value
  4 Summary.Image image value
  5 HistogramProto histo value
  6 Summary.Audio audio value
  7 string node_name
  8 TensorProto tensor value
  9 SummaryMetadata metadata
Event
  1 double wall_time
  2 int64 step
  3 string file_version what
  4 bytes graph_def what
  5 Summary summary what
  6 LogMessage log_message what
  7 SessionLog session_log what
  8 TaggedRunMetadata tagged_run_metadata what
  9 bytes meta_graph_def what
LogMessage
  1 LogMessage.Level level
  2 string message
SessionLog
  1 SessionLog.SessionStatus status
  2 string checkpoint_path
  3 string msg
TaggedRunMetadata
  1 string tag
  2 bytes run_metadata
WatchdogConfig
  1 int64 timeout_ms
RequestedExitCode
  1 int32 exit_code
WorkerHeartbeatRequest
  1 WorkerShutdownMode shutdown_mode
  2 WatchdogConfig watchdog_config
  3 RequestedExitCode exit_code
WorkerHeartbeatResponse
  1 WorkerHealth health_status
  2 repeated Event worker_log
  3 string hostname
RecvBufRespExtra
  1 repeated bytes tensor_content
CreateSessionRequest
  1 GraphDef graph_def
  2 ConfigProto config
  3 string target
CreateSessionResponse
  1 string session_handle
  2 int64 graph_version
ExtendSessionRequest
  1 string session_handle
  2 GraphDef graph_def
  3 int64 current_graph_version
ExtendSessionResponse
  4 int64 new_graph_version
RunStepRequest
  1 string session_handle
  2 repeated NamedTensorProto feed
  3 repeated string fetch
  4 repeated string target
  5 RunOptions options
  6 string partial_run_handle
  7 bool store_errors_in_response_body
  8 int64 request_id
RunStepResponse
  1 repeated NamedTensorProto tensor
  2 RunMetadata metadata
  3 error.Code status_code
  4 string status_error_message
PartialRunSetupRequest
  1 string session_handle
  2 repeated string feed
  3 repeated string fetch
  4 repeated string target
  5 int64 request_id
PartialRunSetupResponse
  1 string partial_run_handle
CloseSessionRequest
  1 string session_handle
CloseSessionResponse
ResetRequest
  1 repeated string container
  2 repeated string device_filters
ResetResponse
ListDevicesRequest
  1 string session_handle
ListDevicesResponse
  1 repeated DeviceAttributes local_device
  2 repeated DeviceAttributes remote_device
MakeCallableRequest
  1 string session_handle
  2 CallableOptions options
  3 int64 request_id
MakeCallableResponse
  1 int64 handle
RunCallableRequest
  1 string session_handle
  2 int64 handle
  3 repeated TensorProto feed
  4 int64 request_id
RunCallableResponse
  1 repeated TensorProto fetch
  2 RunMetadata metadata
ReleaseCallableRequest
  1 string session_handle
  2 int64 handle
ReleaseCallableResponse
GetStatusRequest
GetStatusResponse
  1 repeated DeviceAttributes device_attributes
CreateWorkerSessionRequest
  1 string session_handle
  2 ServerDef server_def
  3 bool isolate_session_state
  4 repeated DeviceAttributes cluster_device_attributes
CreateWorkerSessionResponse
DeleteWorkerSessionRequest
  1 string session_handle
DeleteWorkerSessionResponse
RegisterGraphRequest
  1 string session_handle
  2 GraphDef graph_def
  3 bool has_control_flow
  4 GraphOptions graph_options
  5 DebugOptions debug_options
  6 bool create_worker_session_called
  7 int64 collective_graph_key
RegisterGraphResponse
  1 string graph_handle
DeregisterGraphRequest
  1 string graph_handle
  2 string session_handle
  3 bool create_worker_session_called
DeregisterGraphResponse
CleanupAllRequest
  1 repeated string container
CleanupAllResponse
ExecutorOpts
  1 bool record_costs
  3 bool record_timeline
  4 bool record_partition_graphs
  5 bool report_tensor_allocations_upon_oom
RunGraphRequest
  1 string graph_handle
  2 int64 step_id
  3 repeated NamedTensorProto send
  4 repeated string recv_key
  5 ExecutorOpts exec_opts
  6 bool is_partial
  7 bool is_last_partial_run
  8 string session_handle
  9 bool store_errors_in_response_body
  10 bool create_worker_session_called
  11 int64 request_id
RunGraphResponse
  1 repeated NamedTensorProto recv
  2 StepStats step_stats
  3 CostGraphDef cost_graph
  4 repeated GraphDef partition_graph
  5 error.Code status_code
  6 string status_error_message
CleanupGraphRequest
  1 int64 step_id
CleanupGraphResponse
RecvTensorRequest
  1 int64 step_id
  2 string rendezvous_key
  3 bool dma_ok
  4 DeviceLocality client_locality
  5 DeviceLocality server_locality
  6 google.protobuf.Any transport_options
  7 int64 request_id
RecvTensorResponse
  1 TensorProto tensor
  2 bool is_dead
  3 int64 send_start_micros
  4 google.protobuf.Any transport_options
  5 bool require_ack
MarkRecvFinishedRequest
  1 int64 request_id
MarkRecvFinishedResponse
LoggingRequest
  1 bool enable_rpc_logging
  2 bool clear
  3 repeated int64 fetch_step_id
  4 bool disable_rpc_logging
LabeledStepStats
  1 int64 step_id
  2 StepStats step_stats
LoggingResponse
  1 repeated LabeledStepStats step
TraceOpts
  1 double duration
  2 bool use_step_profiler
  3 bool use_kernel_profiler
  4 bool use_extended_profiler
  5 bool use_gpu_profiler
  6 bool use_sample_profiler
TracingRequest
  1 TraceOpts options
TracingResponse
RecvBufRequest
  1 int64 step_id
  2 string buf_rendezvous_key
  3 int64 num_bytes
  4 fixed64 buf_ptr
  5 DeviceLocality client_locality
  6 DeviceLocality server_locality
  7 google.protobuf.Any transport_options
  8 string src_device
  9 string dst_device
  10 int64 request_id
  11 uint64 src_incarnation
RecvBufResponse
  1 fixed64 buf_ptr
  2 int64 num_bytes
  3 bool is_dead
  4 google.protobuf.Any transport_options
  5 int64 send_start_micros
  6 bool require_ack
CompleteGroupRequest
  1 int32 group_key
  2 int32 group_size
  3 string device_type
  4 repeated string device_name
  5 int32 collective_type
CompleteGroupResponse
  1 int32 group_key
  2 int32 group_size
  3 string device_type
  4 int32 num_tasks
  5 repeated string device_name
  6 repeated string task_name
  7 bytes communicator_key
CompleteInstanceRequest
  1 string name
  2 int32 type
  3 DataType data_type
  4 TensorShapeProto shape
  5 int32 group_key
  6 int32 group_size
  7 int32 instance_key
  8 string device_type
  9 repeated int32 subdiv_offset
  10 string device
  11 bool is_source
CompleteInstanceResponse
  1 int32 instance_key
  2 int32 source_rank
GetStepSequenceRequest
  1 repeated int64 graph_key
StepSequence
  1 int64 graph_key
  2 int64 next_step_id
GetStepSequenceResponse
  1 repeated StepSequence step_sequence
)";

constexpr absl::string_view kEnums = R"(
DataType
  0 DT_INVALID
  1 DT_FLOAT
  2 DT_DOUBLE
  3 DT_INT32
  4 DT_UINT8
  5 DT_INT16
  6 DT_INT8
  7 DT_STRING
  8 DT_COMPLEX64
  9 DT_INT64
  10 DT_BOOL
  11 DT_QINT8
  12 DT_QUINT8
  13 DT_QINT32
  14 DT_BFLOAT16
  15 DT_QINT16
  16 DT_QUINT16
  17 DT_UINT16
  18 DT_COMPLEX128
  19 DT_HALF
  20 DT_RESOURCE
  21 DT_VARIANT
  22 DT_UINT32
  23 DT_UINT64
  101 DT_FLOAT_REF
  102 DT_DOUBLE_REF
  103 DT_INT32_REF
  104 DT_UINT8_REF
  105 DT_INT16_REF
  106 DT_INT8_REF
  107 DT_STRING_REF
  108 DT_COMPLEX64_REF
  109 DT_INT64_REF
  110 DT_BOOL_REF
  111 DT_QINT8_REF
  112 DT_QUINT8_REF
  113 DT_QINT32_REF
  114 DT_BFLOAT16_REF
  115 DT_QINT16_REF
  116 DT_QUINT16_REF
  117 DT_UINT16_REF
  118 DT_COMPLEX128_REF
  119 DT_HALF_REF
  120 DT_RESOURCE_REF
  121 DT_VARIANT_REF
  122 DT_UINT32_REF
  123 DT_UINT64_REF
error.Code
  0 OK
  1 CANCELLED
  2 UNKNOWN
  3 INVALID_ARGUMENT
  4 DEADLINE_EXCEEDED
  5 NOT_FOUND
  6 ALREADY_EXISTS
  7 PERMISSION_DENIED
  8 RESOURCE_EXHAUSTED
  9 FAILED_PRECONDITION
  10 ABORTED
  11 OUT_OF_RANGE
  12 UNIMPLEMENTED
  13 INTERNAL
  14 UNAVAILABLE
  15 DATA_LOSS
  16 UNAUTHENTICATED
  20 DO_NOT_USE_RESERVED_FOR_FUTURE_EXPANSION_USE_DEFAULT_IN_SWITCH_INSTEAD_
VariableSynchronization
  0 VARIABLE_SYNCHRONIZATION_AUTO
  1 VARIABLE_SYNCHRONIZATION_NONE
  2 VARIABLE_SYNCHRONIZATION_ON_WRITE
  3 VARIABLE_SYNCHRONIZATION_ON_READ
VariableAggregation
  0 VARIABLE_AGGREGATION_NONE
  1 VARIABLE_AGGREGATION_SUM
  2 VARIABLE_AGGREGATION_MEAN
  3 VARIABLE_AGGREGATION_ONLY_FIRST_REPLICA
VerifierConfig.Toggle
  0 DEFAULT
  1 ON
  2 OFF
RewriterConfig.Toggle
  0 DEFAULT
  1 ON
  2 OFF
  3 AGGRESSIVE
RewriterConfig.NumIterationsType
  0 DEFAULT_NUM_ITERS
  1 ONE
  2 TWO
RewriterConfig.MemOptType
  0 DEFAULT_MEM_OPT
  1 NO_MEM_OPT
  2 MANUAL
  3 HEURISTICS
  4 SWAPPING_HEURISTICS
  5 RECOMPUTATION_HEURISTICS
  6 SCHEDULING_HEURISTICS
OptimizerOptions.Level
  -1 L0
  0 L1
OptimizerOptions.GlobalJitLevel
  -1 OFF
  0 DEFAULT
  1 ON_1
  2 ON_2
RunOptions.TraceLevel
  0 NO_TRACE
  1 SOFTWARE_TRACE
  2 HARDWARE_TRACE
  3 FULL_TRACE
SaverDef.CheckpointFormatVersion
  0 LEGACY
  1 V1
  2 V2
BundleHeaderProto.Endianness
  0 LITTLE
  1 BIG
TypeSpecProto.TypeSpecClass
  0 UNKNOWN
  1 SPARSE_TENSOR_SPEC
  2 INDEXED_SLICES_SPEC
  3 RAGGED_TENSOR_SPEC
  4 TENSOR_ARRAY_SPEC
  5 DATA_DATASET_SPEC
  6 DATA_ITERATOR_SPEC
  7 OPTIONAL_SPEC
  8 PER_REPLICA_SPEC
LogMessage.Level
  0 UNKNOWN
  10 DEBUGGING
  20 INFO
  30 WARN
  40 ERROR
  50 FATAL
SessionLog.SessionStatus
  0 STATUS_UNSPECIFIED
  1 START
  2 STOP
  3 CHECKPOINT
WorkerHealth
  0 OK
  1 RECEIVED_SHUTDOWN_SIGNAL
  2 INTERNAL_ERROR
  3 SHUTTING_DOWN
WorkerShutdownMode
  0 DEFAULT
  1 NOT_CONFIGURED
  2 WAIT_FOR_COORDINATOR
  3 SHUTDOWN_AFTER_TIMEOUT
)";

// One method per line; requests and responses are tensorflow.<method>Request
// and tensorflow.<method>Response throughout.
constexpr absl::string_view kMethods = R"(
/tensorflow.grpc.MasterService/CreateSession
/tensorflow.grpc.MasterService/ExtendSession
/tensorflow.grpc.MasterService/PartialRunSetup
/tensorflow.grpc.MasterService/RunStep
/tensorflow.grpc.MasterService/CloseSession
/tensorflow.grpc.MasterService/ListDevices
/tensorflow.grpc.MasterService/Reset
/tensorflow.grpc.MasterService/MakeCallable
/tensorflow.grpc.MasterService/RunCallable
/tensorflow.grpc.MasterService/ReleaseCallable
/tensorflow.grpc.WorkerService/GetStatus
/tensorflow.grpc.WorkerService/CreateWorkerSession
/tensorflow.grpc.WorkerService/DeleteWorkerSession
/tensorflow.grpc.WorkerService/RegisterGraph
/tensorflow.grpc.WorkerService/DeregisterGraph
/tensorflow.grpc.WorkerService/RunGraph
/tensorflow.grpc.WorkerService/CleanupGraph
/tensorflow.grpc.WorkerService/CleanupAll
/tensorflow.grpc.WorkerService/RecvTensor
/tensorflow.grpc.WorkerService/Logging
/tensorflow.grpc.WorkerService/Tracing
/tensorflow.grpc.WorkerService/RecvBuf
/tensorflow.grpc.WorkerService/GetStepSequence
/tensorflow.grpc.WorkerService/CompleteGroup
/tensorflow.grpc.WorkerService/CompleteInstance
)";

// Name of a message or enum -> its lines.
using Table = std::map<std::string, std::set<std::string>>;

Table ParseTable(absl::string_view text) {
  Table table;
  std::set<std::string>* current = nullptr;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&line, "  ")) {
      EXPECT_TRUE(current->insert(std::string(line)).second) << "written twice: " << line;
    } else {
      EXPECT_EQ(table.count(std::string(line)), 0u) << "written twice: " << line;
      current = &table[std::string(line)];
    }
  }
  return table;
}

std::string Relative(absl::string_view full_name) {
  absl::ConsumePrefix(&full_name, "tensorflow.");
  return std::string(full_name);
}

std::string TypeOf(const FieldDescriptor* field) {
  if (field->is_map()) {
    const Descriptor* entry = field->message_type();
    return absl::StrCat("map<", TypeOf(entry->map_key()), ",", TypeOf(entry->map_value()), ">");
  }
  std::string type = field->type_name();
  if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
    type = Relative(field->message_type()->full_name());
  } else if (field->type() == FieldDescriptor::TYPE_ENUM) {
    type = Relative(field->enum_type()->full_name());
  }
  return field->is_repeated() ? "repeated " + type : type;
}

void AddEnum(const EnumDescriptor* descriptor, Table* table) {
  std::set<std::string>& lines = (*table)[Relative(descriptor->full_name())];
  for (int i = 0; i < descriptor->value_count(); ++i) {
    lines.insert(absl::StrCat(descriptor->value(i)->number(), " ", descriptor->value(i)->name()));
  }
}

// What the descriptors say, in the form of the tables.
struct Generated {
  Table messages;
  Table enums;
  std::vector<std::string> unpacked;  // repeated numbers that are not packed
};

void AddMessage(const Descriptor* descriptor, Generated* generated) {
  if (descriptor->options().map_entry()) return;
  std::set<std::string>& lines = generated->messages[Relative(descriptor->full_name())];
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    std::string line = absl::StrCat(field->number(), " ", TypeOf(field), " ", field->name());
    if (field->containing_oneof() != nullptr) {
      absl::StrAppend(&line, " ", field->containing_oneof()->name());
    }
    lines.insert(line);
    if (field->is_packable() && !field->is_packed()) {
      generated->unpacked.push_back(field->full_name());
    }
  }
  for (int i = 0; i < descriptor->nested_type_count(); ++i) {
    AddMessage(descriptor->nested_type(i), generated);
  }
  for (int i = 0; i < descriptor->enum_type_count(); ++i) {
    AddEnum(descriptor->enum_type(i), &generated->enums);
  }
}

// All files of this folder but the services: those listed, which no other file
// imports, and what they import. The calls keep the linker from dropping any.
std::vector<const FileDescriptor*> Files() {
  using namespace ::tensorflow;  // NOLINT: thirty names of one schema
  std::set<const FileDescriptor*> found;
  std::vector<const FileDescriptor*> open = {
      CheckpointState::descriptor()->file(),
      ConfigProto::descriptor()->file(),
      CondContextDef::descriptor()->file(),
      CriticalSectionDef::descriptor()->file(),
      DeviceProperties::descriptor()->file(),
      Event::descriptor()->file(),
      Example::descriptor()->file(),
      ExampleParserConfiguration::descriptor()->file(),
      GraphDebugInfo::descriptor()->file(),
      KernelDef::descriptor()->file(),
      MemoryLogStep::descriptor()->file(),
      serving::Signatures::descriptor()->file(),
      CreateSessionRequest::descriptor()->file(),
      QueueRunnerDef::descriptor()->file(),
      ReaderBaseState::descriptor()->file(),
      SavedModel::descriptor()->file(),
      SavedTensorSlices::descriptor()->file(),
      BundleEntryProto::descriptor()->file(),
      RecvBufRespExtra::descriptor()->file(),
      RunGraphRequest::descriptor()->file(),
  };
  std::vector<const FileDescriptor*> files;
  while (!open.empty()) {
    const FileDescriptor* file = open.back();
    open.pop_back();
    if (!absl::StartsWith(file->name(), "proto/") || !found.insert(file).second) continue;
    files.push_back(file);
    for (int i = 0; i < file->dependency_count(); ++i) open.push_back(file->dependency(i));
  }
  return files;
}

const Generated& AllGenerated() {
  static const Generated& generated = *[] {
    auto* result = new Generated;
    for (const FileDescriptor* file : Files()) {
      for (int i = 0; i < file->message_type_count(); ++i) {
        AddMessage(file->message_type(i), result);
      }
      for (int i = 0; i < file->enum_type_count(); ++i) {
        AddEnum(file->enum_type(i), &result->enums);
      }
    }
    return result;
  }();
  return generated;
}

void ExpectSame(const Table& expected, const Table& actual) {
  for (const auto& [name, lines] : expected) {
    const auto found = actual.find(name);
    if (found == actual.end()) {
      ADD_FAILURE() << "tensorflow." << name << " is missing";
      continue;
    }
    for (const std::string& line : lines) {
      EXPECT_EQ(found->second.count(line), 1u) << name << " lacks: " << line;
    }
    for (const std::string& line : found->second) {
      EXPECT_EQ(lines.count(line), 1u) << name << " has beyond the table: " << line;
    }
  }
  for (const auto& [name, lines] : actual) {
    EXPECT_EQ(expected.count(name), 1u) << "tensorflow." << name << " is not in the table";
  }
}

TEST(DescriptorTable, EveryFieldHasTheNumberTypeAndNameOfTensorFlow) {
  const Table expected = ParseTable(kMessages);
  size_t rows = 0;
  for (const auto& [name, lines] : expected) rows += lines.size();
  EXPECT_GE(rows, 600u);
  EXPECT_GE(expected.size(), 190u);
  ExpectSame(expected, AllGenerated().messages);
}

TEST(DescriptorTable, EveryEnumHasTheValuesOfTensorFlow) {
  ExpectSame(ParseTable(kEnums), AllGenerated().enums);
}

TEST(DescriptorTable, RepeatedNumbersArePacked) {
  EXPECT_EQ(absl::StrJoin(AllGenerated().unpacked, " "), "");
}

TEST(DescriptorTable, EveryFileIsProto3InAPackageOfTensorFlow) {
  const std::vector<const FileDescriptor*> files = Files();
  EXPECT_GE(files.size(), 50u);
  const std::set<std::string> packages = {"tensorflow", "tensorflow.error", "tensorflow.serving"};
  for (const FileDescriptor* file : files) {
    EXPECT_EQ(file->syntax(), FileDescriptor::SYNTAX_PROTO3) << file->name();
    EXPECT_EQ(packages.count(file->package()), 1u) << file->name() << ": " << file->package();
    EXPECT_TRUE(file->options().cc_enable_arenas()) << file->name();
  }
}

TEST(DescriptorTable, ServicesHaveTheMethodsOfTensorFlow) {
  // The name that a stub puts on the wire is made from this one.
  EXPECT_STREQ(::tensorflow::grpc::MasterService::service_full_name(),
               "tensorflow.grpc.MasterService");
  EXPECT_STREQ(::tensorflow::grpc::WorkerService::service_full_name(),
               "tensorflow.grpc.WorkerService");

  std::set<std::string> actual;
  for (const char* path : {"proto/master_service.proto", "proto/worker_service.proto"}) {
    const FileDescriptor* file = DescriptorPool::generated_pool()->FindFileByName(path);
    ASSERT_NE(file, nullptr) << path;
    EXPECT_EQ(file->package(), "tensorflow.grpc");
    ASSERT_EQ(file->service_count(), 1) << path;
    for (int i = 0; i < file->service(0)->method_count(); ++i) {
      const auto* method = file->service(0)->method(i);
      actual.insert(absl::StrCat("/", file->service(0)->full_name(), "/", method->name()));
      EXPECT_EQ(method->input_type()->full_name(),
                absl::StrCat("tensorflow.", method->name(), "Request"));
      EXPECT_EQ(method->output_type()->full_name(),
                absl::StrCat("tensorflow.", method->name(), "Response"));
      EXPECT_FALSE(method->client_streaming()) << method->full_name();
      EXPECT_FALSE(method->server_streaming()) << method->full_name();
    }
  }
  std::set<std::string> expected;
  for (absl::string_view line : absl::StrSplit(kMethods, '\n', absl::SkipEmpty())) {
    expected.insert(std::string(line));
  }
  EXPECT_EQ(expected.size(), 25u);
  EXPECT_EQ(actual, expected);
}

}  // namespace
}  // namespace millrace
