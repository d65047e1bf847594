// latex_symbols.js — names that TeX has for characters.

// Without a prototype: a name is looked up that somebody else chose.
const table = (entries) => Object.assign(Object.create(null), entries);
const pairs = (text) => table(Object.fromEntries(text.trim().split(/\s+/).map((p) => p.split("="))));

export const kSymbols = pairs(`
    alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι kappa=κ lambda=λ mu=μ nu=ν xi=ξ
    pi=π varpi=ϖ rho=ρ varrho=ϱ sigma=σ varsigma=ς tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ omega=ω Gamma=Γ Delta=Δ Theta=Θ
    Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω infty=∞ partial=∂ nabla=∇ emptyset=∅ varnothing=∅ hbar=ℏ ell=ℓ Re=ℜ
    Im=ℑ aleph=ℵ wp=℘ imath=ı jmath=ȷ forall=∀ exists=∃ nexists=∄ top=⊤ bot=⊥ angle=∠ triangle=△ square=□ blacksquare=■ qed=∎
    checkmark=✓ degree=° dagger=† ddagger=‡ prime=′ ldots=… dots=… cdots=⋯ vdots=⋮ ddots=⋱ dotsc=… dotsb=⋯ %=% $=$ #=# &=& _=_`);

export const kOperators = pairs(`
    times=× cdot=⋅ div=÷ pm=± mp=∓ ast=∗ star=⋆ circ=∘ bullet=∙ oplus=⊕ ominus=⊖ otimes=⊗ odot=⊙ wedge=∧ land=∧ vee=∨ lor=∨ cap=∩
    cup=∪ setminus=∖ neg=¬ lnot=¬ le=≤ leq=≤ ge=≥ geq=≥ leqslant=⩽ geqslant=⩾ ll=≪ gg=≫ ne=≠ neq=≠ approx=≈ sim=∼ simeq=≃ cong=≅
    equiv=≡ propto=∝ prec=≺ succ=≻ preceq=⪯ succeq=⪰ in=∈ notin=∉ ni=∋ subset=⊂ supset=⊃ subseteq=⊆ supseteq=⊇ subsetneq=⊊ mid=∣
    nmid=∤ parallel=∥ perp=⊥ models=⊨ vdash=⊢ to=→ rightarrow=→ leftarrow=← gets=← leftrightarrow=↔ Rightarrow=⇒ Leftarrow=⇐
    Leftrightarrow=⇔ implies=⟹ impliedby=⟸ iff=⟺ mapsto=↦ longrightarrow=⟶ longleftarrow=⟵ Longrightarrow=⟹ longmapsto=⟼
    hookrightarrow=↪ uparrow=↑ downarrow=↓ nearrow=↗ searrow=↘ rightleftharpoons=⇌ xrightarrow=→ triangleq=≜ coloneqq=≔ because=∵
    therefore=∴ lt=< gt=> colon=: langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ lvert=| rvert=| lVert=‖ rVert=‖ vert=| Vert=‖
    lbrace={ rbrace=} {={ }=} |=‖ backslash=\\ pmod=mod bmod=mod mod=mod asymp=≍ doteq=≐ ltimes=⋉ rtimes=⋊ dotplus=∔ lesssim=≲ gtrsim=≳`);

export const kBig = pairs("sum=∑ prod=∏ coprod=∐ int=∫ iint=∬ iiint=∭ oint=∮ bigcup=⋃ bigcap=⋂ bigoplus=⨁ bigotimes=⨂ bigvee=⋁ bigwedge=⋀ bigsqcup=⨆");

export const kFunctions = new Set("sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan exp log ln lg lim limsup liminf max min sup inf arg argmax argmin det dim ker deg gcd hom Pr sgn tr".split(" "));

// Whose scripts stand below and above in a displayed formula.
export const kLimits = new Set("\\sum \\prod \\coprod \\bigcup \\bigcap \\bigoplus \\bigotimes \\bigvee \\bigwedge \\bigsqcup \\lim \\limsup \\liminf \\max \\min \\sup \\inf \\argmax \\argmin \\det \\Pr \\gcd \\operatorname*".split(" "));

export const kSpaces = table({ ",": "0.17em", ":": "0.22em", ">": "0.22em", ";": "0.28em", "!": "-0.17em", " ": "0.25em", quad: "1em", qquad: "2em", enspace: "0.5em", thinspace: "0.17em" });

const above = (mark, stretchy = false) => ({ mark, under: false, stretchy });
const below = (mark) => ({ mark, under: true, stretchy: true });
export const kAccents = table({
    hat: above("^"), widehat: above("^", true), bar: above("¯"), overline: above("¯", true), vec: above("→"), overrightarrow: above("→", true), tilde: above("~"),
    widetilde: above("~", true), dot: above("˙"), ddot: above("¨"), check: above("ˇ"), breve: above("˘"), acute: above("´"), grave: above("`"),
    overbrace: above("⏞", true), underbrace: below("⏟"), underline: below("_"),
});

export const kDelimiters = Object.assign(pairs("(=( )=) [=[ ]=] |=| /=/ \\{={ \\}=} \\lbrace={ \\rbrace=} \\|=‖ \\langle=⟨ \\rangle=⟩ \\lfloor=⌊ \\rfloor=⌋ \\lceil=⌈ \\rceil=⌉ \\lvert=| \\rvert=| \\lVert=‖ \\rVert=‖ \\vert=| \\Vert=‖ \\uparrow=↑ \\downarrow=↓ \\backslash=\\ <=⟨ >=⟩"), { ".": "" });

// Alphabets of the block of mathematical letters; a few letters have older code points.
const kOlder = { "𝔹C": "ℂ", "𝔹H": "ℍ", "𝔹N": "ℕ", "𝔹P": "ℙ", "𝔹Q": "ℚ", "𝔹R": "ℝ", "𝔹Z": "ℤ", "𝒜B": "ℬ", "𝒜E": "ℰ", "𝒜F": "ℱ", "𝒜H": "ℋ", "𝒜I": "ℐ", "𝒜L": "ℒ", "𝒜M": "ℳ", "𝒜R": "ℛ", "𝔄C": "ℭ", "𝔄H": "ℌ", "𝔄I": "ℑ", "𝔄R": "ℜ", "𝔄Z": "ℨ" };
const alphabet = (key, upper, lower, digit = 0) => (c) => {
    if (kOlder[key + c]) return kOlder[key + c];
    if (/^[A-Z]$/.test(c)) return String.fromCodePoint(upper + c.charCodeAt(0) - 65);
    if (/^[a-z]$/.test(c) && lower) return String.fromCodePoint(lower + c.charCodeAt(0) - 97);
    return /^\d$/.test(c) && digit ? String.fromCodePoint(digit + Number(c)) : c;
};
const bold = alphabet("", 0x1d400, 0x1d41a, 0x1d7ce);
export const kStyles = table({
    mathbb: alphabet("𝔹", 0x1d538, 0x1d552, 0x1d7d8), mathcal: alphabet("𝒜", 0x1d49c, 0), mathscr: alphabet("𝒜", 0x1d49c, 0), mathfrak: alphabet("𝔄", 0x1d504, 0x1d51e),
    mathbf: bold, boldsymbol: bold, bm: bold, mathsf: alphabet("", 0x1d5a0, 0x1d5ba, 0x1d7e2), mathtt: alphabet("", 0x1d670, 0x1d68a, 0x1d7f6), mathit: (c) => c,
});
