/* A plugin execution provider of ONNX Runtime for tests: computes some float operators in plain loops on the CPU.
 *
 * ONNX Runtime publishes its C headers in no package, so this file declares the few types and functions that it uses.
 * A function is a place in a table. Tables and structures only grow at their end, so the places of VERSION hold in
 * every later release; ONNX Runtime reads no member of a structure that is newer than its `version`.
 *
 * WRONG builds a flaw in, to show that the conformance checks find it:
 *   1: the last number of a sum is not computed (it is 0)
 *   2: each hyperbolic tangent leaks LEAK bytes
 *   3: each hyperbolic tangent fails
 */
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef WRONG
#define WRONG 0
#endif
enum { VERSION = 23, FAILED = 1, CPU = 0, FLOAT = 1, MAX_RANK = 8, LEAK = 1 << 16 };
static const char NAME[] = "TestExecutionProvider";

typedef struct Status Status; /* a null pointer is success */
typedef struct Device Device; /* hardware */
typedef struct EpDevice EpDevice;
typedef struct Graph Graph;
typedef struct Node Node;
typedef struct Support Support; /* the nodes that a provider claims */
typedef struct ValueInfo ValueInfo;
typedef struct TypeInfo TypeInfo;
typedef struct TensorInfo TensorInfo;
typedef struct Value Value;
typedef struct Context Context; /* of one run of one kernel */

typedef struct ApiBase {
    const void *(*GetApi)(uint32_t version);
    const char *(*GetVersionString)(void);
} ApiBase;

typedef struct Kernel { /* OrtNodeComputeInfo */
    uint32_t version;
    Status *(*CreateState)(struct Kernel *, void *context, void **state);
    Status *(*Compute)(struct Kernel *, void *state, Context *);
    void (*ReleaseState)(struct Kernel *, void *state);
} Kernel;

typedef struct Ep { /* OrtEp */
    uint32_t version;
    const char *(*GetName)(const struct Ep *);
    Status *(*GetCapability)(struct Ep *, const Graph *, Support *);
    Status *(*Compile)(struct Ep *, const Graph **, const Node **fused, size_t count, Kernel **, Node **ep_context);
    void (*ReleaseKernels)(struct Ep *, Kernel **, size_t count);
    void *optional[8];
} Ep;

typedef struct Factory { /* OrtEpFactory */
    uint32_t version;
    const char *(*GetName)(const struct Factory *);
    const char *(*GetVendor)(const struct Factory *);
    Status *(*GetSupportedDevices)(struct Factory *, const Device *const *, size_t count, EpDevice **, size_t maximum,
                                   size_t *supported);
    Status *(*CreateEp)(struct Factory *, const Device *const *, const void *const *metadata, size_t count,
                        const void *session_options, const void *logger, Ep **);
    void (*ReleaseEp)(struct Factory *, Ep *);
    uint32_t (*GetVendorId)(const struct Factory *);
    const char *(*GetVersion)(const struct Factory *);
    Status *(*ValidateCompiledModel)(struct Factory *, const Device *const *, size_t count, const char *, int *);
    Status *(*CreateAllocator)(struct Factory *, const void *memory, const void *options, void **);
    void (*ReleaseAllocator)(struct Factory *, void *);
    Status *(*CreateDataTransfer)(struct Factory *, void **);
    bool (*IsStreamAware)(const struct Factory *);
    Status *(*CreateStream)(struct Factory *, const void *device, const void *options, void **);
} Factory;

/* place, result, name, parameters */
#define API(X)                                                                                                         \
    X(0, Status *, CreateStatus, (int code, const char *message))                                                      \
    X(51, Status *, GetTensorMutableData, (Value *, void **))                                                          \
    X(55, Status *, CastTypeInfoToTensorInfo, (const TypeInfo *, const TensorInfo **))                                 \
    X(60, Status *, GetTensorElementType, (const TensorInfo *, int *))                                                 \
    X(61, Status *, GetDimensionsCount, (const TensorInfo *, size_t *))                                                \
    X(62, Status *, GetDimensions, (const TensorInfo *, int64_t *, size_t count))                                      \
    X(65, Status *, GetTensorTypeAndShape, (const Value *, TensorInfo **))                                             \
    X(90, Status *, KernelContext_GetInput, (const Context *, size_t index, const Value **))                           \
    X(91, Status *, KernelContext_GetOutput, (Context *, size_t index, const int64_t *, size_t rank, Value **))        \
    X(99, void, ReleaseTensorTypeAndShapeInfo, (TensorInfo *))                                                         \
    X(289, Status *, GetValueInfoName, (const ValueInfo *, const char **))                                             \
    X(290, Status *, GetValueInfoTypeInfo, (const ValueInfo *, const TypeInfo **))                                     \
    X(307, int, HardwareDevice_Type, (const Device *))                                                                 \
    X(317, const void *, GetEpApi, (void))                                                                             \
    X(344, Status *, Graph_GetNumNodes, (const Graph *, size_t *))                                                     \
    X(345, Status *, Graph_GetNodes, (const Graph *, const Node **, size_t count))                                     \
    X(350, Status *, Node_GetOperatorType, (const Node *, const char **))                                              \
    X(351, Status *, Node_GetDomain, (const Node *, const char **))                                                    \
    X(353, Status *, Node_GetNumInputs, (const Node *, size_t *))                                                      \
    X(354, Status *, Node_GetInputs, (const Node *, const ValueInfo **, size_t count))
#define EP_API(X)                                                                                                      \
    X(0, Status *, CreateEpDevice, (Factory *, const Device *, const void *, const void *options, EpDevice **))        \
    X(2, Status *, AddNodesToFuse, (Support *, const Node *const *, size_t count, const void *options))
#define MEMBER(place, result, name, parameters) result(*name) parameters;
static struct {
    API(MEMBER) EP_API(MEMBER)
} ort;
#define BIND(place, result, name, parameters) memcpy(&ort.name, &table[place], sizeof table[place]);

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        Status *failed = (call);                                                                                       \
        if (failed) return failed;                                                                                     \
    } while (0)

static Status *error(const char *message) { return ort.CreateStatus(FAILED, message); }

/* ---- Operators ---- */

static float add(float x, float y) { return x + y; }
static float sub(float x, float y) { return x - y; }
static float mul(float x, float y) { return x * y; }
static float divide(float x, float y) { return x / y; }

typedef struct Operator {
    const char *name;
    float (*unary)(float);
    float (*binary)(float, float); /* a matrix product has neither */
} Operator;

static const Operator OPERATORS[] = {
    {"Add", NULL, add},    {"Sub", NULL, sub},    {"Mul", NULL, mul},     {"Div", NULL, divide},
    {"Erf", erff, NULL},   {"Sqrt", sqrtf, NULL}, {"Tanh", tanhf, NULL},  {"MatMul", NULL, NULL},
};

typedef struct Tensor {
    size_t rank;
    int64_t shape[MAX_RANK];
    float *data;
} Tensor;

static size_t size(const Tensor *tensor) {
    size_t product = 1;
    for (size_t axis = 0; axis < tensor->rank; axis++) product *= (size_t)tensor->shape[axis];
    return product;
}

/* The size of an axis counted from the last, 1 if there is none. */
static int64_t from_end(const Tensor *tensor, size_t axis) {
    return axis < tensor->rank ? tensor->shape[tensor->rank - 1 - axis] : 1;
}

/* Shape of the result of broadcasting; the last `own` axes are left to the caller. */
static Status *broadcast(const Tensor *x, const Tensor *y, size_t own, Tensor *result) {
    result->rank = x->rank > y->rank ? x->rank : y->rank;
    for (size_t axis = own; axis < result->rank; axis++) {
        int64_t one = from_end(x, axis), other = from_end(y, axis);
        if (one != other && one != 1 && other != 1) return error("the shapes of the operands do not match");
        result->shape[result->rank - 1 - axis] = one == 1 ? other : one;
    }
    return NULL;
}

/* Where an element of the result is in an operand: without the last `own` axes, in units of what those hold. */
static size_t source(const Tensor *operand, const Tensor *result, size_t own, size_t index) {
    size_t offset = 0, stride = 1;
    for (size_t axis = own; axis < result->rank; axis++) {
        size_t length = (size_t)from_end(result, axis), mine = (size_t)from_end(operand, axis);
        if (mine != 1) offset += index % length * stride;
        index /= length;
        stride *= mine;
    }
    return offset;
}

static void product(const Tensor *x, const Tensor *y, const Tensor *result) {
    size_t rows = (size_t)from_end(x, 1), inner = (size_t)from_end(x, 0), columns = (size_t)from_end(y, 0);
    size_t total = size(result);
    memset(result->data, 0, total * sizeof(float));
    for (size_t matrix = 0; matrix * rows * columns < total; matrix++) {
        const float *left = x->data + source(x, result, 2, matrix) * rows * inner;
        const float *right = y->data + source(y, result, 2, matrix) * inner * columns;
        float *to = result->data + matrix * rows * columns;
        for (size_t row = 0; row < rows; row++)
            for (size_t k = 0; k < inner; k++)
                for (size_t column = 0; column < columns; column++)
                    to[row * columns + column] += left[row * inner + k] * right[k * columns + column];
    }
}

/* ---- A compiled node ---- */

typedef struct Compiled {
    Kernel base; /* first: ONNX Runtime hands back a pointer to it */
    const Operator *operator;
    size_t inputs[2]; /* for each operand, which input of the fused node: equal operands share one */
} Compiled;

static Status *read_input(const Context *context, size_t index, Tensor *tensor) {
    const Value *value;
    TensorInfo *info;
    TRY(ort.KernelContext_GetInput(context, index, &value));
    TRY(ort.GetTensorMutableData((Value *)value, (void **)&tensor->data));
    TRY(ort.GetTensorTypeAndShape(value, &info));
    Status *status = ort.GetDimensionsCount(info, &tensor->rank);
    if (!status && tensor->rank > MAX_RANK) status = error("a tensor has too many dimensions");
    if (!status) status = ort.GetDimensions(info, tensor->shape, tensor->rank);
    ort.ReleaseTensorTypeAndShapeInfo(info);
    return status;
}

static Status *compute(Kernel *base, void *state, Context *context) {
    (void)state;
    const Compiled *self = (const Compiled *)base;
    const Operator *operator= self->operator;
    Tensor x, y, result;
    TRY(read_input(context, self->inputs[0], &x));
    if (operator->unary)
        result = x;
    else {
        TRY(read_input(context, self->inputs[1], &y));
        TRY(broadcast(&x, &y, operator->binary ? 0 : 2, &result));
        if (!operator->binary) {
            if (from_end(&x, 0) != from_end(&y, 1)) return error("the shapes of the matrices do not match");
            result.shape[result.rank - 2] = from_end(&x, 1);
            result.shape[result.rank - 1] = from_end(&y, 0);
        }
    }
    Value *output;
    TRY(ort.KernelContext_GetOutput(context, 0, result.shape, result.rank, &output));
    TRY(ort.GetTensorMutableData(output, (void **)&result.data));
    size_t total = size(&result);
    if (operator->unary) {
        if (WRONG == 3 && operator->unary == tanhf) return error("the flaw of this build");
        if (WRONG == 2 && operator->unary == tanhf) {
            volatile char *leaked = malloc(LEAK);
            for (size_t index = 0; leaked && index < LEAK; index += 512) leaked[index] = 1; /* takes physical memory */
        }
        for (size_t index = 0; index < total; index++) result.data[index] = operator->unary(x.data[index]);
    } else if (operator->binary) {
        for (size_t index = 0; index < total; index++)
            result.data[index] = operator->binary(x.data[source(&x, &result, 0, index)],
                                                  y.data[source(&y, &result, 0, index)]);
        if (WRONG == 1 && operator->binary == add && total) result.data[total - 1] = 0;
    } else if (total)
        product(&x, &y, &result);
    return NULL;
}

static Status *create_state(Kernel *base, void *context, void **state) {
    (void)context;
    *state = base;
    return NULL;
}

static void release_state(Kernel *base, void *state) { (void)base, (void)state; }

/* ---- The provider ---- */

static const char *ep_name(const Ep *ep) { return (void)ep, NAME; }

/* The operator of a node that the provider can compute, otherwise NULL. */
static Status *supported(const Node *node, const Operator **found) {
    const char *name, *domain;
    const ValueInfo *inputs[2];
    size_t count;
    *found = NULL;
    TRY(ort.Node_GetOperatorType(node, &name));
    TRY(ort.Node_GetDomain(node, &domain));
    TRY(ort.Node_GetNumInputs(node, &count));
    if (*domain || count < 1 || count > 2) return NULL;
    TRY(ort.Node_GetInputs(node, inputs, count));
    for (size_t index = 0; index < count; index++) {
        const TypeInfo *type;
        const TensorInfo *tensor;
        int element;
        size_t rank;
        TRY(ort.GetValueInfoTypeInfo(inputs[index], &type));
        TRY(ort.CastTypeInfoToTensorInfo(type, &tensor));
        if (!tensor) return NULL;
        TRY(ort.GetTensorElementType(tensor, &element));
        TRY(ort.GetDimensionsCount(tensor, &rank));
        if (element != FLOAT || rank > MAX_RANK || (rank < 2 && !strcmp(name, "MatMul"))) return NULL;
    }
    for (size_t index = 0; index < sizeof OPERATORS / sizeof *OPERATORS; index++)
        if (!strcmp(OPERATORS[index].name, name)) *found = &OPERATORS[index];
    return NULL;
}

static Status *get_capability(Ep *ep, const Graph *graph, Support *support) {
    (void)ep;
    size_t count;
    TRY(ort.Graph_GetNumNodes(graph, &count));
    const Node **nodes = malloc((count + 1) * sizeof *nodes);
    Status *status = nodes ? ort.Graph_GetNodes(graph, nodes, count) : error("out of memory");
    for (size_t index = 0; !status && index < count; index++) {
        const Operator *operator;
        status = supported(nodes[index], &operator);
        if (!status && operator) status = ort.AddNodesToFuse(support, &nodes[index], 1, NULL);
    }
    free(nodes);
    return status;
}

static Status *compile_node(const Graph *graph, const Node *fused, Compiled *self) {
    const Node *node;
    const ValueInfo *operands[2], *inputs[2];
    size_t operand_count, input_count;
    TRY(ort.Graph_GetNodes(graph, &node, 1));
    TRY(supported(node, &self->operator));
    if (!self->operator) return error("a node that the provider did not claim");
    TRY(ort.Node_GetNumInputs(node, &operand_count));
    TRY(ort.Node_GetInputs(node, operands, operand_count));
    TRY(ort.Node_GetNumInputs(fused, &input_count));
    if (input_count > operand_count) return error("a fused node has more inputs than its node");
    TRY(ort.Node_GetInputs(fused, inputs, input_count));
    for (size_t operand = 0; operand < operand_count; operand++)
        for (size_t input = 0; input < input_count; input++) {
            const char *one, *other;
            TRY(ort.GetValueInfoName(operands[operand], &one));
            TRY(ort.GetValueInfoName(inputs[input], &other));
            if (!strcmp(one, other)) self->inputs[operand] = input;
        }
    return NULL;
}

static Status *compile(Ep *ep, const Graph **graphs, const Node **fused, size_t count, Kernel **kernels,
                       Node **unused) {
    (void)ep, (void)unused;
    for (size_t index = 0; index < count; index++) {
        Compiled *self = calloc(1, sizeof *self);
        if (!self) return error("out of memory");
        self->base = (Kernel){VERSION, create_state, compute, release_state};
        kernels[index] = &self->base; /* ONNX Runtime releases those that are set, after an error too */
        TRY(compile_node(graphs[index], fused[index], self));
    }
    return NULL;
}

static void release_kernels(Ep *ep, Kernel **kernels, size_t count) {
    (void)ep;
    for (size_t index = 0; index < count; index++) free(kernels[index]);
}

/* ---- The factory ---- */

static const char *factory_name(const Factory *factory) { return (void)factory, NAME; }
static const char *vendor(const Factory *factory) { return (void)factory, "isorun's tests"; }
static uint32_t vendor_id(const Factory *factory) { return (void)factory, 0; }
static const char *version(const Factory *factory) { return (void)factory, "1.2.3"; }
static Status *data_transfer(Factory *factory, void **none) { return (void)factory, *none = NULL, NULL; }
static bool is_stream_aware(const Factory *factory) { return (void)factory, false; }

static Status *devices(Factory *factory, const Device *const *found, size_t count, EpDevice **offered, size_t maximum,
                       size_t *number) {
    *number = 0;
    for (size_t index = 0; index < count && *number < maximum; index++)
        if (ort.HardwareDevice_Type(found[index]) == CPU)
            TRY(ort.CreateEpDevice(factory, found[index], NULL, NULL, &offered[(*number)++]));
    return NULL;
}

static Status *create_ep(Factory *factory, const Device *const *found, const void *const *metadata, size_t count,
                         const void *session_options, const void *logger, Ep **made) {
    (void)factory, (void)found, (void)metadata, (void)count, (void)session_options, (void)logger;
    *made = calloc(1, sizeof **made);
    if (!*made) return error("out of memory");
    **made = (Ep){VERSION, ep_name, get_capability, compile, release_kernels, {NULL}};
    return NULL;
}

static void release_ep(Factory *factory, Ep *ep) {
    (void)factory;
    free(ep);
}

static Factory the_factory = {
    .version = VERSION,
    .GetName = factory_name,
    .GetVendor = vendor,
    .GetSupportedDevices = devices,
    .CreateEp = create_ep,
    .ReleaseEp = release_ep,
    .GetVendorId = vendor_id,
    .GetVersion = version,
    .CreateDataTransfer = data_transfer,
    .IsStreamAware = is_stream_aware,
};

Status *CreateEpFactories(const char *name, const ApiBase *base, const void *logger, Factory **factories,
                             size_t maximum, size_t *number) {
    (void)name, (void)logger, (void)maximum;
    const void *const *table = base->GetApi(VERSION);
    *number = 0;
    if (!table) return NULL; /* an older release: no provider, and nothing to report an error with */
    API(BIND)
    table = ort.GetEpApi();
    EP_API(BIND)
    *factories = &the_factory;
    *number = 1;
    return NULL;
}

Status *ReleaseEpFactory(Factory *factory) { return (void)factory, NULL; }
