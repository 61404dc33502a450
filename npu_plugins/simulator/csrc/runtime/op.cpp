#include "runtime/op.h"

#include <atomic>
#include <cstring>

#include "acl/acl.h"
#include "acl/acl_op_compiler.h"
#include "runtime/export.h"

namespace npu_sim {
namespace {
std::atomic<OpRunner> op_runner{nullptr};
}
void set_op_runner(OpRunner runner) { op_runner = runner; }
}  // namespace npu_sim

using namespace npu_sim;

NPU_SIM_API aclTensorDesc* aclCreateTensorDesc(aclDataType dtype, int rank, const int64_t* shape, aclFormat format) {
    return new aclTensorDesc{dtype, format, std::vector<int64_t>(shape, shape + rank), "", false, {}};
}
NPU_SIM_API void aclDestroyTensorDesc(const aclTensorDesc* desc) { delete desc; }
NPU_SIM_API void aclSetTensorDescName(aclTensorDesc* desc, const char* name) { desc->name = name; }
NPU_SIM_API aclError aclSetTensorFormat(aclTensorDesc* desc, aclFormat format) {
    desc->format = format;
    return ACL_SUCCESS;
}
NPU_SIM_API aclError aclSetTensorShape(aclTensorDesc* desc, int rank, const int64_t* shape) {
    // The storage shape of a private format; the simulator keeps every tensor in the plain one (ND).
    desc->shape.assign(shape, shape + rank);
    return ACL_SUCCESS;
}
NPU_SIM_API aclError aclSetTensorPlaceMent(aclTensorDesc* desc, aclMemType place) {
    desc->on_host = place == ACL_MEMTYPE_HOST || place == ACL_MEMTYPE_HOST_COMPILE_INDEPENDENT;
    return ACL_SUCCESS;
}
NPU_SIM_API aclError aclSetTensorConst(aclTensorDesc* desc, void* data, size_t bytes) {
    desc->constant.assign(static_cast<char*>(data), static_cast<char*>(data) + bytes);
    return ACL_SUCCESS;
}
NPU_SIM_API size_t aclGetTensorDescNumDims(const aclTensorDesc* desc) { return desc->shape.size(); }
NPU_SIM_API aclFormat aclGetTensorDescFormat(const aclTensorDesc* desc) { return desc->format; }
NPU_SIM_API aclDataType aclGetTensorDescType(const aclTensorDesc* desc) { return desc->dtype; }
NPU_SIM_API aclError aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t dim, int64_t* size) {
    if (dim >= desc->shape.size()) return fail(ACL_ERROR_INVALID_PARAM, "aclGetTensorDescDimV2: no such dim.");
    *size = desc->shape[dim];
    return ACL_SUCCESS;
}

NPU_SIM_API aclDataBuffer* aclCreateDataBuffer(void* data, size_t bytes) { return new aclDataBuffer{data, bytes}; }
NPU_SIM_API aclError aclDestroyDataBuffer(const aclDataBuffer* buffer) {
    delete buffer;
    return ACL_SUCCESS;
}

NPU_SIM_API aclopAttr* aclopCreateAttr() { return new aclopAttr; }
NPU_SIM_API void aclopDestroyAttr(const aclopAttr* attributes) { delete attributes; }
NPU_SIM_API aclError aclopSetAttrBool(aclopAttr* attributes, const char* name, uint8_t value) {
    attributes->values[name] = value != 0;
    return ACL_SUCCESS;
}
NPU_SIM_API aclError aclopSetAttrInt(aclopAttr* attributes, const char* name, int64_t value) {
    attributes->values[name] = value;
    return ACL_SUCCESS;
}
NPU_SIM_API aclError aclopSetAttrFloat(aclopAttr* attributes, const char* name, float value) {
    attributes->values[name] = static_cast<double>(value);
    return ACL_SUCCESS;
}
NPU_SIM_API aclError aclopSetAttrString(aclopAttr* attributes, const char* name, const char* value) {
    attributes->values[name] = std::string(value);
    return ACL_SUCCESS;
}
NPU_SIM_API aclError aclopSetAttrDataType(aclopAttr* attributes, const char* name, aclDataType value) {
    attributes->values[name] = value;
    return ACL_SUCCESS;
}
NPU_SIM_API aclError aclopSetAttrListInt(aclopAttr* attributes, const char* name, int count, const int64_t* values) {
    attributes->values[name] = std::vector<int64_t>(values, values + count);
    return ACL_SUCCESS;
}
NPU_SIM_API aclError aclopSetAttrListFloat(aclopAttr* attributes, const char* name, int count, const float* values) {
    attributes->values[name] = std::vector<double>(values, values + count);
    return ACL_SUCCESS;
}
NPU_SIM_API aclError aclopSetAttrListBool(aclopAttr* attributes, const char* name, int count, const uint8_t* values) {
    attributes->values[name] = std::vector<bool>(values, values + count);
    return ACL_SUCCESS;
}
NPU_SIM_API aclError aclopSetAttrListListInt(aclopAttr* attributes, const char* name, int lists, const int* counts,
                                             const int64_t* const values[]) {
    std::vector<std::vector<int64_t>> all;
    for (int i = 0; i < lists; ++i) all.emplace_back(values[i], values[i] + counts[i]);
    attributes->values[name] = all;
    return ACL_SUCCESS;
}

NPU_SIM_API aclError aclopCompileAndExecute(const char* type, int input_count, const aclTensorDesc* const input_descs[],
                                            const aclDataBuffer* const inputs[], int output_count,
                                            const aclTensorDesc* const output_descs[], aclDataBuffer* const outputs[],
                                            const aclopAttr* attributes, aclopEngineType, aclopCompileType, const char*,
                                            aclrtStream stream) {
    const OpRunner run = op_runner.load();
    if (!run) return refuse((std::string("operator ") + type + " (aclopCompileAndExecute)").c_str());
    return run({type,
                {input_descs, input_descs + input_count},
                {inputs, inputs + input_count},
                {output_descs, output_descs + output_count},
                {outputs, outputs + output_count},
                attributes,
                stream});
}

NPU_SIM_API aclError aclopCompileAndExecuteV2(const char* type, int input_count, aclTensorDesc* input_descs[],
                                              aclDataBuffer* inputs[], int output_count, aclTensorDesc* output_descs[],
                                              aclDataBuffer* outputs[], aclopAttr* attributes, aclopEngineType engine,
                                              aclopCompileType compile, const char* path, aclrtStream stream) {
    return aclopCompileAndExecute(type, input_count, input_descs, inputs, output_count, output_descs, outputs, attributes,
                                  engine, compile, path, stream);
}
