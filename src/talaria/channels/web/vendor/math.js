import temml from "temml";
export const treeOf = temml.__renderToMathMLTree;
