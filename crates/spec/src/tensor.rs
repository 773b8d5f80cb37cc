//! Tensors: those that a model needs, and those that a checkpoint has.

use std::collections::BTreeMap;

/// A tensor that a model needs, as it is before quantisation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TensorSpec {
    /// Name in the checkpoint. A quantised matrix has `scales`, and perhaps `biases`, beside its
    /// `weight`.
    pub name: String,
    /// Purpose.
    pub role: TensorRole,
    /// Dimensions without quantisation: `[output, input]` for a matrix, `[experts, output, input]`
    /// for those of all experts.
    pub shape: Vec<usize>,
    /// How ranks divide it.
    pub cut: TensorCut,
    /// Whether it is a matrix that may be quantised.
    pub is_quantizable: bool,
    /// Name in checkpoints that store one tensor per expert: the parts before and after the
    /// expert's number.
    pub per_expert: Option<[String; 2]>,
    /// Tensors of original checkpoints that may contain it together with others.
    pub fused: Vec<FusedSource>,
    /// Which checkpoints have it.
    pub presence: Presence,
}

/// Tensor of an original checkpoint that contains a projection of all experts, and perhaps the rows
/// of another projection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FusedSource {
    /// Prefix of the names of its tensors.
    pub path: String,
    /// How the tensors hold the rows.
    pub form: FusedForm,
    /// First row of the projection.
    pub first_row: usize,
    /// Distance of two rows of the projection: the rows of others may lie between them.
    pub row_step: usize,
    /// Number of projections of as many rows that the tensor has.
    pub num_projections: usize,
}

/// How a tensor with projections of all experts holds them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FusedForm {
    /// `[experts, rows, input]`.
    Rows,
    /// `[experts, input, rows]`.
    Columns,
    /// As OpenAI publishes gpt-oss: in MXFP4, with the codes of each group in a dimension of their
    /// own, `[experts, rows, groups, bytes]`.
    Blocks,
}

impl FusedSource {
    /// Number of codes of [`FusedForm::Blocks`] that share a scale.
    pub const GROUP: usize = 32;

    /// Returns the name of the tensor with a module's `weight`, `scales` or `bias`.
    ///
    /// # Panics
    /// Panics if there is no such tensor.
    pub fn name(&self, tensor: &str) -> String {
        match (tensor, self.form) {
            ("weight", FusedForm::Rows | FusedForm::Columns) => self.path.clone(),
            ("weight", FusedForm::Blocks) => format!("{}_blocks", self.path),
            ("scales" | "bias", _) => format!("{}_{tensor}", self.path),
            (other, _) => panic!("no {other} in such checkpoints"),
        }
    }
}

impl TensorSpec {
    /// Returns the source of a tensor that a checkpoint stores together with others in one;
    /// `is_stored` returns whether the checkpoint has the tensor of a name. `None` if the tensor is
    /// stored on its own, or not at all.
    pub fn fused_in(&self, is_stored: impl Fn(&str) -> bool) -> Option<&FusedSource> {
        let is_alone = is_stored(&self.name);
        self.fused.iter().find(|source| !is_alone && is_stored(&source.name("weight")))
    }

    /// Whether a checkpoint has the tensor, where `is_stored` returns whether it has the tensor of
    /// a name.
    pub fn is_in(&self, is_stored: impl Fn(&str) -> bool) -> bool {
        match &self.presence {
            Presence::Always => true,
            Presence::With(name) => is_stored(name),
            Presence::Without(name) => !is_stored(name),
        }
    }
}

/// Which checkpoints have a tensor: some weights are stored in one of two forms.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Presence {
    /// All of them.
    Always,
    /// Only checkpoints that have the tensor of this name.
    With(String),
    /// Only checkpoints without the tensor of this name.
    Without(String),
}

/// The purpose of a tensor.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum TensorRole {
    /// Embedding: from tokens to vectors.
    Embedding,
    /// Output head: from vectors to logits, and what it reads of several streams in the place of a norm.
    Head,
    /// Further embeddings, of tokens or of n-grams: the vectors that layers read beside the stream.
    PerLayerTable,
    /// Projections of the first embedding that the rank with the first layer computes.
    PerLayerInput,
    /// The mixer of positions: attention or a recurrence.
    Mixer,
    /// Feed-forward block that every token passes.
    Mlp,
    /// Routed experts.
    Experts,
    /// Chooses the experts of a token.
    Router,
    /// Table of the experts of each token: integers.
    RouterTable,
    /// Norm.
    Norm,
}

/// How the ranks that share a layer divide a tensor.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TensorCut {
    /// Every rank holds all of it.
    Replicated,
    /// Each rank holds a part of the output, the last dimension but one, or the only dimension of a
    /// bias. A fused projection has several segments, each of which is divided separately.
    Column(Vec<CutSegment>),
    /// Each rank holds a part of the input, the last dimension; products are summed over the ranks.
    Row(Dimension),
    /// Each rank holds some of the matrices, the first of three dimensions.
    Stack(Dimension),
}

/// Consecutive rows of a column-parallel tensor that are divided in the same way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CutSegment {
    /// Dimension of the layer that the rows belong to.
    pub dimension: Dimension,
    /// Number of rows.
    pub len: usize,
}

/// A dimension that is divided among the ranks.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Dimension {
    /// Rows of the vocabulary.
    Vocab,
    /// Query heads.
    Heads,
    /// Key and value heads.
    KvHeads,
    /// Heads of a state space beside attention.
    StateHeads,
    /// Groups of these heads.
    StateGroups,
    /// Inner dimension of the dense feed-forward block.
    Inner,
    /// Inner dimension of each routed expert.
    ExpertInner,
    /// Inner dimension of the experts that every token passes.
    SharedInner,
    /// Rows of each part of a table of n-grams.
    NgramRows,
    /// Rows beside those of others that every rank holds.
    Whole,
}

/// An element type of a checkpoint.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ElementType {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Packed codes.
    U32,
    /// Indices.
    I32,
    /// Scales of the floating-point quantisations.
    U8,
    /// Constants that are not read.
    I64,
    /// A type that no supported architecture uses, by its name.
    Other(String),
}

impl ElementType {
    /// Returns the type of this name in a safetensors header.
    pub fn from_name(name: &str) -> ElementType {
        match name {
            "F32" => ElementType::F32,
            "F16" => ElementType::F16,
            "BF16" => ElementType::Bf16,
            "U32" => ElementType::U32,
            "I32" => ElementType::I32,
            "U8" => ElementType::U8,
            "I64" => ElementType::I64,
            other => ElementType::Other(other.to_owned()),
        }
    }

    /// Returns the name in a safetensors header.
    pub fn name(&self) -> &str {
        match self {
            ElementType::F32 => "F32",
            ElementType::F16 => "F16",
            ElementType::Bf16 => "BF16",
            ElementType::U32 => "U32",
            ElementType::I32 => "I32",
            ElementType::U8 => "U8",
            ElementType::I64 => "I64",
            ElementType::Other(name) => name,
        }
    }

    /// Whether weights of this type are floats, in which a model can be computed.
    pub fn is_float(&self) -> bool {
        matches!(self, ElementType::F32 | ElementType::F16 | ElementType::Bf16)
    }

    /// Returns the size of an element in bytes; 0 for types that no supported architecture uses.
    pub fn size_bytes(&self) -> u64 {
        match self {
            ElementType::I64 => 8,
            ElementType::F32 | ElementType::U32 | ElementType::I32 => 4,
            ElementType::F16 | ElementType::Bf16 => 2,
            ElementType::U8 => 1,
            ElementType::Other(_) => 0,
        }
    }
}

/// A tensor of a checkpoint, as the header of its file describes it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TensorHeader {
    /// Element type.
    pub element_type: ElementType,
    /// Dimensions.
    pub shape: Vec<usize>,
}

impl TensorHeader {
    /// Returns its size in bytes.
    pub fn num_bytes(&self) -> u64 {
        let elements: u64 = self.shape.iter().map(|&dim| dim as u64).product();
        elements * self.element_type.size_bytes()
    }
}

/// The tensors of a checkpoint by name.
pub type TensorHeaders = BTreeMap<String, TensorHeader>;

impl TensorCut {
    /// Returns the cut of a tensor whose `len` rows all belong to one dimension.
    pub fn whole_column(dimension: Dimension, len: usize) -> TensorCut {
        TensorCut::Column(vec![CutSegment { dimension, len }])
    }
}
