//! Names of the tensors of attention, of dense feed-forward blocks and of the norms around them:
//! names of modules, to which `.weight` and `.bias` are added.

/// Names of the tensors of attention.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct AttentionModules {
    /// Prefix of the names of the block's other tensors.
    pub block: String,
    /// Projections to queries, keys and values.
    pub qkv: QkvModules,
    /// Projection from the heads' results.
    pub output: String,
    /// Norms of queries and of keys, if there are any.
    pub qk_norms: [String; 2],
}

impl AttentionModules {
    /// Returns the names of Llama's checkpoints at `block`.
    pub fn at(block: &str) -> AttentionModules {
        let at = |name: &str| format!("{block}.{name}");
        AttentionModules {
            block: block.to_owned(),
            qkv: QkvModules::Apart(["q_proj", "k_proj", "v_proj"].map(at)),
            output: at("o_proj"),
            qk_norms: ["q_norm", "k_norm"].map(at),
        }
    }
}

/// Names of the projections to queries, keys and values.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum QkvModules {
    /// Each in a tensor of its own.
    Apart([String; 3]),
    /// In one tensor: the rows of all queries, then those of all keys, then those of all values.
    Stacked(String),
    /// In one tensor: for each key-value head the rows of its queries, its key and its value.
    Grouped(String),
}

impl Default for QkvModules {
    fn default() -> QkvModules {
        QkvModules::Apart(Default::default())
    }
}

/// Names of the tensors of a dense feed-forward block.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MlpModules {
    /// Projections to the inner dimension.
    pub inward: InwardModules,
    /// Projection from it.
    pub down: String,
    /// Parameters of the activation, if it has any.
    pub activation: String,
}

impl MlpModules {
    /// Returns the names of Llama's checkpoints at `module`.
    pub fn gated_at(module: &str) -> MlpModules {
        let at = |name: &str| format!("{module}.{name}");
        MlpModules {
            inward: InwardModules::Apart(["gate_proj", "up_proj"].map(at)),
            down: at("down_proj"),
            activation: String::new(),
        }
    }

    /// The same, or with gate and up in a tensor of the name `both`.
    pub fn either_at(module: &str, both: &str) -> MlpModules {
        let apart = ["gate_proj", "up_proj"].map(|name| format!("{module}.{name}"));
        let inward = InwardModules::Either { apart, stacked: format!("{module}.{both}") };
        MlpModules { inward, ..MlpModules::gated_at(module) }
    }

    /// The same without a gate.
    pub fn ungated_at(module: &str) -> MlpModules {
        let inward = InwardModules::Ungated(format!("{module}.up_proj"));
        MlpModules { inward, ..MlpModules::gated_at(module) }
    }
}

/// Names of the projections to the inner dimension.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum InwardModules {
    /// The gate, and what it is multiplied by.
    Apart([String; 2]),
    /// Both in one tensor, the gate first.
    Stacked(String),
    /// As `Apart`, or in originals as `Stacked`.
    Either {
        /// The gate, and what it is multiplied by.
        apart: [String; 2],
        /// Both in one tensor, the gate first.
        stacked: String,
    },
    /// There is no gate.
    Ungated(String),
}

impl Default for InwardModules {
    fn default() -> InwardModules {
        InwardModules::Apart(Default::default())
    }
}

/// The norms around the blocks of a layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerNorms {
    /// Norms around the mixer.
    pub mixer: BlockNorms,
    /// Norms around the feed-forward block. If the two blocks of a layer run in parallel, this block has
    /// no input norm of its own: it reads the output of the mixer's.
    pub feed_forward: BlockNorms,
    /// Epsilon of these norms, if it differs from that of the model's last norm.
    pub eps: Option<f32>,
}

/// The norms around a block.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct BlockNorms {
    /// Norm of the stream that the block reads; `None` if it reads the stream itself.
    pub input: Option<String>,
    /// Norm of what the block adds to the stream.
    pub output: Option<String>,
}

impl LayerNorms {
    /// Returns the modules of all norms.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        let LayerNorms { mixer, feed_forward, .. } = self;
        let all = [&mixer.input, &mixer.output, &feed_forward.input, &feed_forward.output];
        all.into_iter().flatten().map(String::as_str)
    }
}
